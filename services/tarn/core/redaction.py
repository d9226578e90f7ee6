"""Taking secrets out of texts that leave the machine: each value, in each form it may have. Pure."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterable, Mapping
from urllib.parse import quote

REPLACEMENT = "[secret]"
CHARS_MIN = 8
"""A shorter value is a name or a word, not a secret; replacing it would spoil the text."""


def values(content: str) -> frozenset[str]:
    """The secret values in a file: all of it, each string of a JSON file, both halves of `id:secret`."""
    found = {content.strip()}
    with contextlib.suppress(ValueError):
        found |= set(_strings(json.loads(content)))
    for text in tuple(found):
        head, colon, tail = text.partition(":")
        if colon and "\n" not in text and not text.startswith("{"):
            found |= {head, tail}
    return frozenset(text for text in found if len(text) >= CHARS_MIN)


def forms(value: str) -> frozenset[str]:
    """How a value may stand in a text: plain, in JSON, in a URL, in base64 alone or within more."""
    raw = value.encode()
    found = {value, json.dumps(value)[1:-1], quote(value, safe="")}
    for shift in range(3):
        # The characters that also hold bits of the neighbours are left out.
        padded = base64.b64encode(b"\0" * shift + raw)
        inner = padded[(shift * 8 + 5) // 6 : (shift * 8 + len(raw) * 8) // 6].decode()
        found |= {inner, inner.replace("+", "-").replace("/", "_")}
    return frozenset(text for text in found if len(text) >= CHARS_MIN)


def needles(contents: Iterable[str], *, spared: Iterable[str] = ()) -> tuple[str, ...]:
    """Everything to look for, the longest first; words in `spared` (names of services) are none."""
    plain = {value for content in contents for value in values(content)} - set(spared)
    return tuple(sorted({form for value in plain for form in forms(value)}, key=lambda n: (-len(n), n)))


def redacted(text: str, wanted: Iterable[str]) -> tuple[str, int]:
    """The text without them, and how many were taken out."""
    count = 0
    for needle in wanted:
        if needle in text:
            count += text.count(needle)
            text = text.replace(needle, REPLACEMENT)
    return text, count


def redact_all(
    texts: Mapping[str, str], contents: Iterable[str], *, spared: Iterable[str] = ()
) -> tuple[dict[str, str], int]:
    """Every text without the secrets in `contents`, and how many were taken out of all of them."""
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
