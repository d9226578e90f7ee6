"""Removal of secrets from texts that leave the machine: each value, in every form it may take. Pure."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Mapping
from urllib.parse import quote

REPLACEMENT = "[secret]"
CHARS_MIN = 8
"""A shorter value is a name or a word rather than a secret; replacing it would garble the text."""


def values(content: str) -> frozenset[str]:
    """Secret values in a file: the whole content, each string of a JSON file, both halves of `id:secret`."""
    found = {content.strip()}
    with contextlib.suppress(ValueError):
        found |= set(_strings(json.loads(content)))
    for text in tuple(found):
        head, colon, tail = text.partition(":")
        if colon and "\n" not in text and not text.startswith("{"):
            found |= {head, tail}
    return frozenset(text for text in found if len(text) >= CHARS_MIN)


def forms(value: str) -> frozenset[str]:
    """Forms in which a value may appear in a text: plain, in JSON, in a URL, in base64 alone or embedded."""
    raw = value.encode()
    found = {value, json.dumps(value)[1:-1], quote(value, safe="")}
    for shift in range(3):
        # Omit the base64 characters that also encode bits of neighbouring bytes.
        padded = base64.b64encode(b"\0" * shift + raw)
        inner = padded[(shift * 8 + 5) // 6 : (shift * 8 + len(raw) * 8) // 6].decode()
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return frozenset(text for text in found if len(text) >= CHARS_MIN)


def needles(contents: Iterable[str], *, spared: Iterable[str] = ()) -> tuple[str, ...]:
    """All strings to search for, longest first; words in `spared` (service names) are excluded."""
    plain = {value for content in contents for value in values(content)} - set(spared)
    return tuple(sorted({form for value in plain for form in forms(value)}, key=lambda n: (-len(n), n)))


def redacted(text: str, wanted: Iterable[str]) -> tuple[str, int]:
    """(text without the wanted strings, number of replacements)."""
    count = 0
    for needle in wanted:
        if needle in text:
            count += text.count(needle)
            text = text.replace(needle, REPLACEMENT)
    return text, count


def redact_all(
    texts: Mapping[str, str], contents: Iterable[str], *, spared: Iterable[str] = ()
) -> tuple[dict[str, str], int]:
    """Remove the secrets from all texts.

    Args:
        texts: name to text.
        contents: contents of secret files.
        spared: words that are not secrets, such as service names.

    Returns:
        The redacted texts by name, and the number of replacements in all of them.
    """
    wanted = needles(contents, spared=spared)
    cleaned: dict[str, str] = {}
    total = 0
    for name, text in texts.items():
        cleaned[name], count = redacted(text, wanted)
        total += count
    return cleaned, total


def _strings(value: object) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(key)
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
