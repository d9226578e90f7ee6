"""Rejection of requests that a foreign page made a browser send: DNS rebinding and cross-site requests. Pure.

A page of any site can make a browser send requests to 127.0.0.1, and after pointing its own name there (DNS
rebinding) it can also read the responses. Both show in headers that a page cannot set: `Host` then has the
page's name, and `Origin` or `Sec-Fetch-Site` (Fetch Metadata, W3C) identifies the page as another site's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SETTING = "TARN_HOSTS"
MISDIRECTED = 421
FORBIDDEN = 403
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
SHOWN_CHARS_MAX = 100
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is rejected.

    Attributes:
        status: HTTP status code.
        message: reason, for people.
    """

    status: int
    message: str


def parse_names(text: str) -> tuple[str, ...]:
    """Parse a setting: host names or addresses separated by commas, without ports.

    Raises:
        ValueError: an entry is neither.
    """
    names = tuple(part.strip().lower().strip("[]") for part in text.split(",") if part.strip())
    for name in names:
        if not _NAME.fullmatch(name) and not _is_address(name):
            raise ValueError(
                f"{name!r} is no host name; give names or addresses without ports, as in a.lan,b.lan"
            )
    return names


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Host names that a service accepts.

    Attributes:
        names: lower case, without ports; IPv6 addresses without brackets.
    """

    names: frozenset[str]

    @staticmethod
    def of(*names: str, extra: Iterable[str] = ()) -> Hosts:
        """The loopback names, the service's own names and listen address, and those of a setting."""
        return Hosts(names=frozenset(name.lower() for name in (*LOOPBACK, *names, *extra)))

    def refusal(self, method: str, headers: Mapping[str, str], *, changes: bool = False) -> Refusal | None:
        """Why a request must be rejected; None if it may be served.

        Args:
            method: HTTP method.
            headers: headers by lower-case name.
            changes: whether the request changes state although its method is a safe one.
        """
        host = headers.get("host", "")
        if self._name(host) not in self.names:
            return Refusal(
                status=MISDIRECTED,
                message=f"This service does not answer under the name {host[:SHOWN_CHARS_MAX]!r}; use "
                f"127.0.0.1 or localhost, or add the name to {SETTING} if it is yours",
            )
        if method in SAFE_METHODS and not changes:
            return None
        origin = headers.get("origin")
        site = headers.get("sec-fetch-site", "none")
        own = (None, f"http://{host}", f"https://{host}")
        if origin not in own or site not in ("none", "same-origin"):
            page = origin if origin is not None else f"a {site} page"
            return Refusal(
                status=FORBIDDEN,
                message=f"A web page of another origin ({page[:SHOWN_CHARS_MAX]}) may change nothing here; "
                "use a client that is no web page",
            )
        return None

    @staticmethod
    def _name(header: str) -> str | None:
        found = _HEADER.fullmatch(header.strip().lower())
        return found[1].strip("[]").removesuffix(".") if found else None
