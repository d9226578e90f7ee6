"""The files of the page at /: read once, served with an ETag and with headers that keep foreign code out.

Nothing of the page is made by the server: its names and figures come from the API, and its scripts write them
as text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from tarn.core.http_answers import Answer

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX = "index.html"
FOLDER = "/page/"


def policy(stream_url: str) -> str:
    """The Content-Security-Policy of the page.

    Args:
        stream_url: address that the page may ask beside this server; empty for none.
    """
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            f"connect-src 'self' {stream_url}".rstrip(),
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


@dataclass(frozen=True, slots=True)
class _Asset:
    body: bytes
    headers: Mapping[str, str]


class Assets:
    """The page's files.

    Args:
        stream_url: address that the page may ask beside this server; empty for none.
    """

    def __init__(self, stream_url: str = "") -> None:
        self._by_path: dict[str, _Asset] = {}
        for file in files("tarn.ingest").joinpath("page").iterdir():
            kind = TYPES.get(file.name.rpartition(".")[2])
            if kind is None:
                continue
            body = file.read_bytes()
            headers = {
                "content-type": kind,
                # Kept, and asked about each time: after an update, no old script meets a new API.
                "cache-control": "no-cache",
                "etag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
                "content-security-policy": policy(stream_url),
                "referrer-policy": "no-referrer",
                "cross-origin-opener-policy": "same-origin",
                "cross-origin-resource-policy": "same-origin",
            }
            path = "/" if file.name == INDEX else f"{FOLDER}{file.name}"
            self._by_path[path] = _Asset(body, headers)

    @property
    def paths(self) -> list[str]:
        """The paths that are served."""
        return sorted(self._by_path)

    def get(self, path: str, headers: Mapping[str, str]) -> Answer | None:
        """The answer for a path; None if there is no such file.

        Args:
            path: path of the request.
            headers: its headers, by lower-case name.
        """
        found = self._by_path.get(path)
        if found is None:
            return None
        known = [one.strip().removeprefix("W/") for one in headers.get("if-none-match", "").split(",")]
        if found.headers["etag"] in known:
            return Answer(status=304, headers=found.headers)
        return Answer(body=found.body, headers=found.headers)
