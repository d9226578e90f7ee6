"""Interface to the parsers of messages, one for each format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
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
    index: Sequence[int]
    bad: dict[int, str]

    def without(self, wrong: Mapping[int, str]) -> Parsed:
        """The same without some rows, whose messages are bad ones.

        Args:
            wrong: row index to the reason.
        """
        if not wrong:
            return self
        mask = mask_without(len(self.index), wrong)
        keep = pa.Array.from_buffers(pa.uint8(), len(mask), [None, pa.py_buffer(mask)]).cast(pa.bool_())
        return Parsed(
            columns=[column.filter(keep) for column in self.columns],
            index=list(compress(self.index, mask)),
            bad=self.bad | {self.index[row]: reason for row, reason in wrong.items()},
        )


def mask_without(count: int, out: Iterable[int]) -> bytearray:
    """One byte per index in [0, count): 0 for those that are out, 1 for the others."""
    mask = bytearray(b"\x01") * count
    for i in out:
        mask[i] = 0
    return mask


class Parser(Protocol):
    """Parses messages of one format into the columns of a spec."""

    def parse(self, values: Sequence[bytes]) -> Parsed:
        """Parse each message to one row, or to a bad one with the reason."""
