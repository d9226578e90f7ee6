"""What a table's owner lets the gateway take in a day: limits in table properties, the count in each commit.

Days are those of UTC. The count changes in the same commit as the rows, so it holds across restarts and for
all gateways together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn.core.errors import InvalidSpecError

ROWS_PROPERTY = "tarn.gateway.quota.rows-per-day"
BYTES_PROPERTY = "tarn.gateway.quota.bytes-per-day"
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a table took on a day.

    Attributes:
        day: the day, in days since the epoch.
        rows: number of rows, rejected ones too.
        bytes: size of the rows as they were sent.
    """

    day: int = 0
    rows: int = 0
    bytes: int = 0

    def on(self, day: int) -> Used:
        """What counts on a day: this, if it is of that day or the next one; otherwise nothing yet.

        The next one has begun for a gateway whose clock is a little ahead. A later one is of a clock that was
        wrong, and would be the count of all days until then.
        """
        return self if day <= self.day <= day + 1 else Used(day=day)

    def plus(self, day: int, rows: int, size: int) -> Used:
        """The count after further rows on a day; see `on`."""
        before = self.on(day)
        return Used(day=before.day, rows=before.rows + rows, bytes=before.bytes + size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Limits of a day.

    Attributes:
        rows: number of rows; None for no limit.
        bytes: size of the rows as they are sent; None for no limit.
    """

    rows: int | None = None
    bytes: int | None = None

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self.rows is not None or self.bytes is not None

    def exceeded(self, used: Used) -> str | None:
        """Which limit a count is beyond, in words; None if it is within them."""
        for name, limit, count, unit in (
            (ROWS_PROPERTY, self.rows, used.rows, "rows"),
            (BYTES_PROPERTY, self.bytes, used.bytes, "bytes"),
        ):
            if limit is not None and count > limit:
                return f"{count} {unit} in one day, and its property {name} allows {limit}"
        return None


def quota_in(properties: Mapping[str, str], *, table: str) -> Quota:
    """The limits that a table's properties state.

    Args:
        properties: the properties.
        table: name of the table, for messages.

    Raises:
        InvalidSpecError: a limit is not a whole number.
    """

    def limit(name: str) -> int | None:
        text = properties.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise InvalidSpecError(
                f"table {table}: property {name} is {text[:40]!r}; its owner has to set a whole number",
                table=table,
            )
        return int(text)

    return Quota(rows=limit(ROWS_PROPERTY), bytes=limit(BYTES_PROPERTY))
