"""Which transform takes which type: the table of Iceberg's specification, "Partition Transforms".

A table with a transform that does not fit its column can be made by a careless client; engines then neither
read nor drop it. So it is refused where specs and tables are made.
"""

from __future__ import annotations

import re

_DAYS = ("date",)
_TIMES = ("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns")
_CUT = ("int", "long", "decimal", "string", "binary")
_FOR: dict[str, tuple[str, ...]] = {
    "year": (*_DAYS, *_TIMES),
    "month": (*_DAYS, *_TIMES),
    "day": (*_DAYS, *_TIMES),
    "hour": _TIMES,
    "truncate": _CUT,
    "bucket": (*_CUT, *_DAYS, "time", *_TIMES, "uuid", "fixed"),
}
_NEVER = ("geometry", "geography", "variant")


def fits(transform: str, kind: object) -> bool:
    """Whether a column of this type can be transformed so.

    Args:
        transform: by its name, with or without its width: `bucket`, `bucket[16]`.
        kind: an Iceberg type as in table metadata: a name, or a dict for a struct, list or map.
    """
    name = _base(transform)
    if name == "void":
        return True
    if not isinstance(kind, str):
        return False
    allowed = _FOR.get(name)
    return _base(kind) not in _NEVER if allowed is None else _base(kind) in allowed


def types_for(transform: str) -> str:
    """The types that a transform takes, for people."""
    allowed = _FOR.get(_base(transform))
    return ", ".join(allowed) if allowed else f"any but {', '.join(_NEVER)} and nested types"


def transforms_for(kind: object) -> list[str]:
    """The transforms that take a type, besides void."""
    return [name for name in ("identity", *_FOR) if fits(name, kind)]


def _base(text: str) -> str:
    return re.split(r"[\[(]", text.lower(), maxsplit=1)[0].strip()
