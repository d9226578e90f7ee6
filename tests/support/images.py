"""Names of Tarn's images, as the tests must use them."""

from __future__ import annotations

import os

from tests.support.compose import SERVICES, image_of

IMAGES = tuple(dict.fromkeys(image_of(service) for service in SERVICES))


def tag() -> str:
    """The image tag under test: `TARN_IMAGE_TAG`, set by scripts/test, or `dev` when run by hand."""
    return os.environ.get("TARN_IMAGE_TAG", "dev")


def image(name: str) -> str:
    """The full name of one of Tarn's images, for example `tarn/minio:dev`.

    Raises:
        ValueError: Tarn has no image of that name.
    """
    if name not in IMAGES:
        raise ValueError(f"unknown image {name!r}: use one of {', '.join(IMAGES)}")
    return f"tarn/{name}:{tag()}"
