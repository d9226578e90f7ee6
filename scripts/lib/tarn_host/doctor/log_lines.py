"""Extraction of the log line that names the cause, and recognition of known faults. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LINE_CHARS_MAX = 300
_BAD_LEVEL = re.compile(r"\b(ERROR|FATAL|CRITICAL|SEVERE)\b")
_REFUSAL = re.compile(
    r"cannot start|refus|could not|cannot be read|Exception in thread|^[\w.]*(Error|Exception): "
)
_STACK = re.compile(r"^\s+(at |\.\.\. \d+ more|File )|^Traceback |^\s*$")
_LEVELS = ("error", "critical", "fatal")
_SAID = ("message", "reason", "error", "why", "detail", "exception")


@dataclass(frozen=True)
class Known:
    """A fault recognised by its log line.

    Attributes:
        code: the finding's code.
        regex: the pattern that matches the line.
        what: the fault, in one phrase.
        fix: how to fix it.
    """

    code: str
    regex: re.Pattern[str]
    what: str
    fix: str


def _known(code: str, regex: str, what: str, fix: str) -> Known:
    return Known(code=code, regex=re.compile(regex, re.IGNORECASE), what=what, fix=fix)


BUILD_FAULTS = (
    _known(
        "build-ca",
        r"x509: certificate|certificate signed by unknown authority|CERTIFICATE_VERIFY_FAILED|"
        r"unable to get local issuer|PKIX path building|UnknownIssuer|invalid peer certificate|"
        r"certificate verification failed|SSL certificate problem|self.signed certificate",
        "a registry's certificate is not trusted inside the build",
        "put the CA's certificate (PEM, its name ends in .crt) into /usr/local/share/ca-certificates, run "
        "update-ca-certificates, then scripts/up --refresh: the base image is made again, with it",
    ),
    _known(
        "build-disk",
        r"no space left on device|disk quota exceeded|enough free space in",
        "the disk ran full during the build",
        "free some space (`docker system df`, `docker builder prune`), then run scripts/up again",
    ),
    _known(
        "build-dns",
        r"temporary failure (in name resolution|resolving)|could not resolve|no such host|"
        r"name or service not known|failed to lookup address",
        "a registry's name could not be resolved inside the build",
        "check the network and the engine's DNS (`dns` in /etc/docker/daemon.json); run scripts/up again",
    ),
    _known(
        "build-network",
        r"connection (refused|reset|timed out)|network is unreachable|i/o timeout|proxyconnect|"
        r"read timed out|connect timeout|tls handshake timeout|unexpected eof",
        "a registry did not answer during the build",
        "check the network, and the proxy settings of the engine (`proxies` in ~/.docker/config.json), then "
        "run scripts/up again: finished steps are kept",
    ),
    _known(
        "build-checksum",
        r"computed checksum|checksum mismatch|do not match the hashes|hash mismatch",
        "something that was downloaded is not what this version of Tarn pinned",
        "run scripts/up again; if it stays so, a registry or a proxy delivers something else: do not use it",
    ),
)

SERVICE_FAULTS = (
    _known(
        "disk-full",
        r"no space left on device|minimum free drive|XMinioStorageFull|disk quota exceeded|storage full",
        "its disk is full",
        "free some space where the engine keeps its data, then run scripts/up again: nothing acknowledged is "
        "lost",
    ),
    _known(
        "clock-skew",
        r"RequestTimeTooSkewed|request time and the server.s time is too large|token .*(not yet valid|nbf)",
        "two clocks disagree",
        "set this machine's clock (`timedatectl set-ntp true`; with Docker Desktop restart it), then run "
        "scripts/up again",
    ),
    _known(
        "secret-missing",
        r"secret \S+ (cannot be read|is empty|is missing or cannot be read)|could not read the secret|"
        r"[Cc]annot read the principals|refused to start: open \S+: .*the init service writes it",
        "a secret is not there",
        "run scripts/up: it makes what is missing so that it fits the rest, and restarts what uses it",
    ),
)


def known(faults: Sequence[Known], lines: Sequence[str]) -> tuple[Known, str] | None:
    """The first known fault that matches, with the last line that matches it; None if there is none."""
    for fault in faults:
        for text in reversed(lines):
            if fault.regex.search(text):
                return fault, " ".join(text.split())[:LINE_CHARS_MAX]
    return None


def build_fault(lines: Sequence[str]) -> tuple[str, str] | None:
    """Cause of a failed build step with the line that shows it, and the fix; None if it is not known."""
    hit = known(BUILD_FAULTS, lines)
    return None if hit is None else (f"{hit[0].what}: {hit[1]}", hit[0].fix)


def reason(lines: Sequence[str]) -> str:
    """The line that best explains why a service ended: its last error, else a refusal, else its last line."""
    texts = [text for text in lines if not _STACK.search(text)]
    for fits in (_is_error, lambda text: bool(_REFUSAL.search(text)), lambda text: True):
        for text in reversed(texts):
            if fits(text):
                return shown(text)
    return ""


def shown(text: str) -> str:
    """A log line for display: of a JSON line the event and its details, shortened."""
    entry = _json(text)
    if entry is not None:
        first = str(entry.get("event") or entry.get("msg") or "")
        rest = [str(entry[name]) for name in _SAID if entry.get(name) and str(entry[name]) != first]
        text = ": ".join(part for part in [first, *rest[:1]] if part) or text
    return " ".join(text.split())[:LINE_CHARS_MAX]


def _is_error(text: str) -> bool:
    entry = _json(text)
    if entry is not None:
        return str(entry.get("level", "")).lower() in _LEVELS
    return bool(_BAD_LEVEL.search(text[:80]))


def _json(text: str) -> Mapping[str, object] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def seconds(value: float) -> str:
    """A duration in words: `40 s`, `12 min`, `3.5 h`, `9 days`."""
    value = abs(value)
    for limit, unit, divisor in ((120.0, "s", 1.0), (7200.0, "min", 60.0), (172_800.0, "h", 3600.0)):
        if value < limit:
            number = value / divisor
            return f"{number:.0f} {unit}" if unit != "h" else f"{number:.1f} {unit}"
    return f"{value / 86_400:.0f} days"
