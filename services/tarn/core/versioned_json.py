"""JSON that states its format: what Tarn keeps in summaries, properties and objects begins with `"v"`."""

from __future__ import annotations

from typing import Any

import orjson


def read(text: str | bytes, version: int, *older: int) -> Any:
    """Parse JSON of one format, or of an older one that the caller reads too.

    Raises:
        ValueError, KeyError, TypeError: it is not JSON, or not of this format.
    """
    value = orjson.loads(text)
    if value["v"] not in (version, *older):
        raise ValueError(f"format {value['v']}, this version reads {version}")
    return value
