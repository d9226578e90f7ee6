"""Interface to where rows come from, as the audit reads it from data files and dead-letter files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa
from pyroaring import BitMap64

from tarn.core.audit.accounts import LetterPlace, Origins, Tally
from tarn.core.audit.model import FileEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead letter: why its record is not a row, and when that was found."""

    reason: str
    at: datetime


class OriginReader(Protocol):
    """Reads a few columns of one file; each method returns None if the store does not have the file.

    Each raises:
        CorruptStateError: the file cannot be decoded.
        InvalidError: the file cannot be read here.
        UnavailableError: the store does not respond.
    """

    def rows(self, file: FileEntry, deleted: BitMap64) -> Origins | None:
        """Where the rows of a data file come from.

        Args:
            file: a data file.
            deleted: positions of its rows that delete files remove.
        """

    def letters(self, file: FileEntry) -> Mapping[LetterPlace, Tally] | None:
        """Offsets of the dead letters in a dead-letter file."""

    def letter(self, file: FileEntry, place: LetterPlace, offset: int) -> Sequence[Letter] | None:
        """The dead letters of one offset in a dead-letter file."""

    def records(self, file: FileEntry, columns: Sequence[str]) -> pa.Table | None:
        """These columns of the dead letters in a dead-letter file; see `tarn.core.dead_letter.FIELDS`."""

    def deleted(self, file: FileEntry) -> Mapping[str, BitMap64] | None:
        """Positions that a delete file removes, by location of the data file.

        Raises:
            InvalidError: it is an equality delete file.
        """
