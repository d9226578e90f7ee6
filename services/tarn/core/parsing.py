"""Interface to the parsers of messages, one for each format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """Result of parsing messages; rows and bad ones together are all of them.

    Attributes:
        columns: the rows, one array per column of the spec, of the column's type.
        index: row index to index of its message, ascending.
        bad: index of a message to the reason why it is no row.
    """

    columns: list[pa.Array]
    index: list[int]
    bad: dict[int, str]

    def without(self, wrong: Mapping[int, str]) -> Parsed:
        """The same without some rows, whose messages are bad ones.

        Args:
            wrong: row index to the reason.
        """
        if not wrong:
            return self
        keep = [row for row in range(len(self.index)) if row not in wrong]
        return Parsed(
            columns=[column.take(pa.array(keep, pa.int64())) for column in self.columns],
            index=[self.index[row] for row in keep],
            bad=self.bad | {self.index[row]: reason for row, reason in wrong.items()},
        )


class Parser(Protocol):
    """Parses messages of one format into the columns of a spec."""

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Parse each message to one row, or to a bad one with the reason."""
