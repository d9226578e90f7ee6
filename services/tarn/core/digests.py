"""Short digests, to remember many texts in little memory. Pure."""

from __future__ import annotations

from hashlib import blake2b


def digest(text: str) -> int:
    """Return a digest of 64 bits."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
