"""Which partition transform applies to which type, by the Iceberg specification, "Partition Transforms".

A careless client can create a table whose transform does not fit its column, which engines can then neither
read nor drop. Specs and create requests with such a transform are therefore rejected.
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
    """Whether a transform applies to a column of this type.

    Args:
        transform: transform name, with or without width: `bucket`, `bucket[16]`.
        kind: Iceberg type as in table metadata: a name, or a dict for a struct, list or map.
    """
    name = _base(transform)
    if name == "void":
        return True
    if not isinstance(kind, str):
        return False
    allowed = _FOR.get(name)
    return _base(kind) not in _NEVER if allowed is None else _base(kind) in allowed


def types_for(transform: str) -> str:
    """The types that a transform applies to, for messages."""
    allowed = _FOR.get(_base(transform))
    return ", ".join(allowed) if allowed else f"any but {', '.join(_NEVER)} and nested types"


def transforms_for(kind: object) -> list[str]:
    """The transforms that apply to a type, except void."""
    return [name for name in ("identity", *_FOR) if fits(name, kind)]


def fitting(kind: object) -> str:
    """What to do with a column of this type instead, for messages."""
    found = transforms_for(kind)
    if not found:
        return "such a column is neither a partition nor an order: leave it out"
    return f"use {' or '.join([', '.join(found[:-1]), found[-1]] if len(found) > 1 else found)} instead"


def _base(text: str) -> str:
    return re.split(r"[\[(]", text.lower(), maxsplit=1)[0].strip()
