"""What all tables of the lake are like, looked at now and then by a thread, so that no request has to wait.

The catalog and the store are asked here alone: whoever shows the tables shows what was seen last, with the
time of that, and why there is nothing newer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from tarn.core.errors import NotFoundError, TarnError, UnavailableError
from tarn.core.table_files import WrittenList
from tarn.core.table_state import TableState
from tarn.ingest.context import StoppedError
from tarn.ingest.figures import TableFigures, figures_of
from tarn.keeper.measured import Sizes

log = structlog.get_logger()

PAUSE_S = 15.0
"""Pause between two looks at the whole lake, in seconds."""
SHARE = 0.1
"""Share of the time that a look takes; the rest of it, it rests."""
REST_S_MAX = 5.0
FAULTS_SHOWN_MAX = 5
TABLES_MAX = 10_000
"""Tables that are looked at, the first ones by name; about half a kilobyte of memory each."""


class Tables(Protocol):
    """The tables of the lake."""

    def tables(self) -> Sequence[str]:
        """Names of all tables. Raises TarnError if the catalog does not respond."""

    def state(self, table: str) -> TableState:
        """Metadata of a table. Raises TarnError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeen:
    """A table as it was seen.

    Attributes:
        figures: the table in numbers.
        looked_ms: when it was looked at, in milliseconds since the epoch.
        listed: the manifest list of its current snapshot; None if it could not be read.
    """

    figures: TableFigures
    looked_ms: int
    listed: WrittenList | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSeen:
    """The lake as it was seen.

    Attributes:
        tables: what is known of each table, by name.
        looked_ms: end of the last complete look, in milliseconds since the epoch; None before the first.
        fault: why the last look was not complete; empty if it was.
        sizes: what the tables take in the store, as the reaper measured it, by name.
        sizes_ms: when that was read, in milliseconds since the epoch; None before the first time.
        sizes_fault: why it could not be read the last time; empty if it could.
    """

    tables: Mapping[str, TableSeen] = field(default_factory=dict)
    looked_ms: int | None = None
    fault: str = ""
    sizes: Mapping[str, Sizes] = field(default_factory=dict)
    sizes_ms: int | None = None
    sizes_fault: str = ""


class LakeLook:
    """Looks at the lake again and again; one thread looks, any number of them read what it saw.

    Args:
        tables: the tables.
        listed: reads a manifest list by its location.
        sizes: what the tables take in the store, by name.
        now_s: monotonic time in seconds.
        now_ms: wall-clock time in milliseconds since the epoch.
        sleep: waits; raises StoppedError when the process is asked to stop.
        tables_max: tables that are looked at.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        listed: Callable[[str], WrittenList],
        sizes: Callable[[], Mapping[str, Sizes]],
        now_s: Callable[[], float],
        now_ms: Callable[[], int],
        sleep: Callable[[float], None],
        tables_max: int = TABLES_MAX,
    ) -> None:
        self._tables = tables
        self._listed = listed
        self._sizes = sizes
        self._now_s = now_s
        self._now_ms = now_ms
        self._sleep = sleep
        self._tables_max = tables_max
        self._lock = threading.Lock()
        self._seen: dict[str, TableSeen] = {}
        self._last = LakeSeen()

    def seen(self) -> LakeSeen:
        """What was seen last; waits for nothing."""
        with self._lock:
            return replace(self._last, tables=dict(self._seen))

    def run(self) -> None:
        """Look until the process stops."""
        try:
            while True:
                try:
                    self.look()
                except StoppedError:
                    raise
                except Exception as e:
                    log.exception("the look at the lake broke")
                    self._last = replace(self._last, fault=f"{type(e).__name__}: {e}; a defect of Tarn")
                self._sleep(PAUSE_S)
        except StoppedError:
            return

    def look(self) -> None:
        """Look at all tables once; what cannot be seen stays as it was seen before.

        Raises:
            StoppedError: the process was asked to stop.
        """
        self._measure()
        faults = []
        try:
            names = list(self._tables.tables())
            if len(names) > self._tables_max:
                faults.append(
                    f"the lake has {len(names)} tables; only the first {self._tables_max} by name are shown"
                )
            names = sorted(names)[: self._tables_max]
            with self._lock:
                for gone in self._seen.keys() - set(names):
                    del self._seen[gone]
            for name in names:
                fault = self._look_at(name)
                faults += [fault] if fault else []
        except UnavailableError as e:
            # The others would not answer either: each request would only wait for its time to pass.
            faults = [e.message]
        except TarnError as e:
            faults.append(e.message)
        before, fault = self._last, "; ".join(faults[:FAULTS_SHOWN_MAX])
        looked_ms = before.looked_ms if faults else self._now_ms()
        self._last = replace(before, looked_ms=looked_ms, fault=fault)
        if bool(fault) != bool(before.fault):
            (log.warning if fault else log.info)("look at the tables of the lake", fault=fault)

    def _look_at(self, name: str) -> str:
        """Look at a table; returns what is wrong with it, empty for nothing.

        Raises:
            UnavailableError: the catalog does not respond.
            StoppedError: the process was asked to stop.
        """
        began_s = self._now_s()
        try:
            state = self._tables.state(name)
            found = self._seen_now(name, state)
        except NotFoundError:
            with self._lock:
                self._seen.pop(name, None)
            return ""
        except UnavailableError:
            raise
        except TarnError as e:
            return f"table {name}: {e.message}"
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            return f"table {name}: its metadata cannot be read: {type(e).__name__}: {e}"
        with self._lock:
            self._seen[name] = found
        took_s = self._now_s() - began_s
        self._sleep(min(REST_S_MAX, took_s * (1 / SHARE - 1)))
        return ""

    def _seen_now(self, name: str, state: TableState) -> TableSeen:
        """The figures; the manifest list is read only if the snapshot is another one than last time."""
        before = self._seen.get(name)
        head = state.head
        listed = None
        if before is not None and before.figures.snapshot_id == state.head_id:
            listed = before.listed
        if listed is None and head is not None and "manifest-list" in head:
            try:
                listed = self._listed(str(head["manifest-list"]))
            except TarnError:
                listed = None  # unknown is shown as such; the next look tries again
        return TableSeen(figures=figures_of(state, listed), looked_ms=self._now_ms(), listed=listed)

    def _measure(self) -> None:
        try:
            sizes = self._sizes()
        except TarnError as e:
            self._last = replace(self._last, sizes_fault=e.message)
        else:
            self._last = replace(self._last, sizes=sizes, sizes_ms=self._now_ms(), sizes_fault="")
