"""What reads a whole table sees of the outside: time, progress messages, and tables with their metadata."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tarn.core.table_state import TableState

Tell = Callable[[str], None]
"""Called with progress messages for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Injected time: monotonic seconds, and a way to wait."""

    now_s: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


class StateOfTables(Protocol):
    """Tables with their whole metadata, through the catalog."""

    def tables(self) -> Sequence[str]:
        """Return the qualified names of all tables.

        Raises:
            TarnError: the catalog does not respond or denies access.
        """

    def state(self, table: str) -> TableState:
        """Return the table's metadata.

        Raises:
            NoSuchTableError: the table does not exist.
            TarnError: the catalog does not respond or denies access.
        """
