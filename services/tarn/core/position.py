"""Position of a derived table in its source stream: `tarn.position` in a snapshot summary.

A job that derives a table writes the position with the very commit that changes the rows (docs/pipeline.md).
tarn_jobs has its own reader and writer of the same JSON, as Spark's image has nothing of this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError

PROPERTY = "tarn.position"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Position up to which a table is complete.

    Attributes:
        topic: topic that the offsets belong to; empty if not named.
        table: location of the ingested source table, without a trailing slash; empty if not named.
        next: partition to the next offset not yet in the table.
    """

    topic: str = ""
    table: str = ""
    next: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def from_json(text: str) -> Position:
        """Parse the position in a snapshot summary.

        Raises:
            CorruptStateError: the text is not a position of format 1.
        """
        try:
            value = versioned_json.read(text, FORMAT)
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
