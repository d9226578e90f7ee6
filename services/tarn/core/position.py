"""How far a derived table is in the stream that it is made from: `tarn.position` in a snapshot summary.

A job that derives a table writes it with the very commit that changes the rows (docs/pipeline.md). tarn_jobs
has its own reader and writer of the same JSON, as Spark's image holds nothing of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from tarn.core.errors import CorruptStateError

PROPERTY = "tarn.position"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Up to where a table holds everything.

    Attributes:
        topic: the topic that the offsets belong to; empty if it is not named.
        table: location of the ingested table that was read, without a slash at its end; empty if not named.
        next: partition to the next offset that is not in the table.
    """

    topic: str = ""
    table: str = ""
    next: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def from_json(text: str) -> Position:
        """The position that a snapshot summary holds.

        Raises:
            CorruptStateError: the text is not a position of format 1.
        """
        try:
            value = orjson.loads(text)
            if value["v"] != FORMAT:
                raise ValueError(f"format {value['v']}, this version reads {FORMAT}")
            source: Mapping[str, object] = value["source"]
            return Position(
                topic=str(source.get("topic") or ""),
                table=str(source.get("table") or "").rstrip("/"),
                next={int(partition): int(offset) for partition, offset in value["next"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"{PROPERTY} in a snapshot summary cannot be read ({e!r}): {text[:200]!r}; drop the derived "
                "table, or roll it back to a snapshot with a whole position",
                value=text[:200],
            ) from e
