"""Removal of whatever looks like a secret from a text, whoever owns it. Pure.

This is the second safeguard: this copy's own secrets are searched for by value, next to the secret files
(tarn.bootstrap.redact).
"""

from __future__ import annotations

import re

REPLACEMENT = "[secret]"
_KEY = r"secret|passw(?:or)?d|token|credential|api[_-]?key|access[_-]?key|private[_-]?key"
_KEYED = rf"(?=[\w.-]*(?:{_KEY}))(?=(?P<word>[\w.-]+))(?P=word)"
_NAME = rf"(?<![\w.-]){_KEYED}"
"""A whole word with one of these in it. It may be long, so only beginnings are tried, and whole words."""
_ESCAPES = r"\\*"
"""Before a quote within a text that is JSON itself."""
_QUOTE = rf"(?P<quote>{_ESCAPES}[\"'])"
_QUOTED = r"(?:(?<!\\)(?P=quote){2}|(?!(?<!\\)(?P=quote))[^\n])+"
"""What follows a quote, to the next one like it or the line's end; escaped and doubled ones are in it."""
_INSIDE = r"[\"'](?=[\w-])"
"""A quote within a word that is not quoted as a whole."""
_BARE = r"[^\s;\"'&}\]]"
_PATTERNS = (
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[\s\S]*?(?=-----END|\Z)"),
    re.compile(r"(?i)(\bauthorization\W{1,6}(?:bearer|basic|aws4-hmac-sha256)\s+)[^\s\"']+"),
    re.compile(r"(?i)(\b(?:bearer|basic)\s+)[A-Za-z0-9+/=_.-]{16,}"),
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"),
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"((?<![a-z0-9+.-])[a-z0-9+.-]+://[^\s/:@\"']*:)[^\s/\"']+(?=@)"),
    re.compile(r"(?i)(X-Amz-(?:Signature|Credential|Security-Token)=)[^\s&\"']+"),
    re.compile(rf"(?i)({_NAME}{_ESCAPES}[\"']?\s*[:=]\s*{_QUOTE})(?!/run/){_QUOTED}"),
    re.compile(
        rf"(?i)((?<![\w-])--{_KEYED}(?:{_ESCAPES}[\"'])?(?:\s*,\s*|[ \t]+){_QUOTE})"
        rf"(?!/run/|\[secret\]|-){_QUOTED}"
    ),
    re.compile(rf"(?i)((?<![\w-])--{_KEYED}[ \t]+)(?!/run/|\[secret\]|[\"'-]|\$\{{)(?:{_INSIDE}|{_BARE})+"),
    re.compile(rf"(?i)({_NAME}\s*=\s*)(?!/run/|\[secret\]|[\"']|\$\{{)(?:{_INSIDE}|(?!,){_BARE})+"),
    re.compile(rf"(?i)(^[ \t]*{_NAME}:[ \t]+)(?!/run/|\[secret\]|[\"'{{]|\$\{{)[^\s,;&}}\]]+", re.MULTILINE),
)


def redacted(text: str) -> tuple[str, int]:
    """The text without what looks like a secret, and the number of replacements."""
    total = 0
    for pattern in _PATTERNS:
        text, count = pattern.subn(lambda match: match.group(1) + REPLACEMENT, text)
        total += count
    return text, total
