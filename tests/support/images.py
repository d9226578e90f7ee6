"""The names of our images, as the tests must use them."""

from __future__ import annotations

import os

IMAGES = ("minio", "kafka", "trino", "spark", "catalog", "services", "jupyter")


def tag() -> str:
    """The tag that tests run: `TARN_IMAGE_TAG`, set by scripts/test, or `dev` when run by hand."""
    return os.environ.get("TARN_IMAGE_TAG", "dev")


def image(name: str) -> str:
    """The full name of one of our images, for example `tarn/minio:dev`.

    Raises:
        ValueError: the name is none of ours.
    """
    if name not in IMAGES:
        raise ValueError(f"unknown image {name!r}: use one of {', '.join(IMAGES)}")
    return f"tarn/{name}:{tag()}"
