"""ERROR lines in container logs: each is a failure unless tests/log_allow.toml gives a reason to allow it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ALLOW_FILE = Path(__file__).resolve().parent.parent / "log_allow.toml"

_JSON_LEVEL = re.compile(r'"level"\s*:\s*"(?:error|critical|fatal)"', re.IGNORECASE)
_TEXT_LEVEL = re.compile(r"^[^a-z{]{0,60}\b(?:ERROR|FATAL|CRITICAL|SEVERE)\b")
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """One kind of expected line of one service, and the reason."""

    service: str
    regex: re.Pattern[str]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One unexpected line."""

    service: str
    line: str


def load_allowed(path: Path = ALLOW_FILE) -> tuple[Allowed, ...]:
    """The expected lines.

    Raises:
        ValueError: an entry lacks a field or has an unknown one, or its reason has fewer than three words.
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("allow", [])
    found = []
    for entry in entries:
        if set(entry) != {"service", "regex", "reason"} or len(entry["reason"].split()) < 3:
            raise ValueError(f"{path}: {entry} must have service, regex and a reason of at least three words")
        pattern = re.compile(entry["regex"])
        found.append(Allowed(service=entry["service"], regex=pattern, reason=entry["reason"]))
    return tuple(found)


def is_error(line: str) -> bool:
    """Whether a log line reports an error: an error level in JSON or at its start, or a traceback."""
    return any(pattern.search(line) for pattern in (_JSON_LEVEL, _TEXT_LEVEL, _TRACEBACK))


def unexpected(service: str, lines: Iterable[str], allowed: Iterable[Allowed]) -> list[Finding]:
    """The ERROR lines of one service that no entry allows."""
    mine = [entry for entry in allowed if entry.service == service]
    return [
        Finding(service=service, line=line)
        for line in lines
        if is_error(line) and not any(entry.regex.search(line) for entry in mine)
    ]
