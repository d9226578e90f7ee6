"""How much the trail grows: bytes of its logs and tables per hour, for a rate of commits and reports.

`python -m tests.support.trail_growth`. Topic, store and catalog are in memory and the hour is simulated: the
catalog writes a segment every ten seconds, ingest reads it with the built-in specs, merges included. Each row
is an event that the catalog makes itself, of a commit of the longest usual names.
"""

from __future__ import annotations

import argparse
import logging
import sys
import uuid

import structlog

from tarn.adapters.store import MemoryStore
from tarn.adapters.trail_topics import TrailTopics
from tarn.core.errors import NoSuchTableError
from tarn.core.object_store import ObjectStore
from tarn.core.spec import parse_spec
from tarn.core.trail import AUDIT, LOGS, NAMESPACE, TrailLog, spec_text
from tarn_catalog.operations.trail import WRITE_EVERY_S, Trail
from tests.support.lake import Lake

TURNS, TURNS_MAX = 10, 500
"""Turns of ingest in ten seconds, at least and at most."""
SCAN = {
    "report-type": "scan-report",
    "table-name": "tarn.silver.flights_by_day",
    "snapshot-id": 4_611_686_018_427_387_904,
    "filter": {"type": "and", "left": "day >= 2026-11-01", "right": "origin = 'FRA'"},
    "schema-id": 3,
    "projected-field-ids": list(range(1, 21)),
    "projected-field-names": [f"column_{number}" for number in range(1, 21)],
    "metrics": {
        name: {"unit": "count", "value": 12_345}
        for name in (
            *("result-data-files", "result-delete-files", "total-data-manifests", "total-delete-manifests"),
            *("scanned-data-manifests", "skipped-data-manifests", "total-file-size-in-bytes"),
            *("skipped-data-files", "skipped-delete-files", "scanned-delete-manifests"),
        )
    },
}


def commit() -> dict[str, object]:
    """The event of a commit, as `tarn_catalog.operations.audit` makes it."""
    return {
        **{"principal": "jupyter", "client_id": "jupyter-1f2e3d4c5b6a", "action": "commit"},
        **{"object": "table silver.flights_by_day", "outcome": "done"},
    }


def vended() -> dict[str, object]:
    """The event of vended keys."""
    key = uuid.uuid4().hex[:20].upper()
    return {
        **commit(),
        "action": "vend",
        "mode": "write",
        "access_key_id": key,
        "expires_ms": 1_790_000_000_000,
    }


class Hour:
    """A lake in which ten seconds pass whenever ingest has nothing more to do.

    Args:
        log: the log that is measured.
        rows: events in ten seconds.
        intervals: how often ten seconds pass.
    """

    def __init__(self, log: TrailLog, *, rows: int, intervals: int) -> None:
        self.now_s = 1_800_000_000.0
        self.log, self._rows, self._left = log, rows, intervals
        self.lake = Lake()
        self.store = MemoryStore(now_ms=self._now_ms)
        self.reader = TrailTopics(
            self.store, bucket="tarn", others=self.lake.sources, sleep=lambda _: None, clock=self.lake.clock
        )
        self.lake.sources = self.reader  # type: ignore[assignment]
        self.trail = Trail(self.store, now_ms=self._now_ms, clock=lambda: self.now_s)
        self._wanted = self._turns = 0

    def _now_ms(self) -> int:
        return int(self.now_s * 1000)

    def rows(self) -> int:
        """How many rows the table has."""
        try:
            return self.lake.table(f"{NAMESPACE}.{self.log.table}").total("records") or 0
        except NoSuchTableError:
            return 0

    def run(self) -> None:
        """Let ingest work until all intervals are in the table."""
        spec = parse_spec(spec_text(self.log), file=self.log.name)
        self.lake.ingestor(spec).cycle(self._over)
        assert self.rows() == self._wanted, f"{self.rows()} of {self._wanted} rows are in {self.log.table}"

    def _over(self) -> bool:
        """Let time pass if ingest has read everything, and had some turns for what else it does."""
        self._turns += 1
        if self._turns < TURNS or (self._turns < TURNS_MAX and self.rows() < self._wanted):
            return False
        if self._left == 0 or self._turns >= TURNS_MAX:
            return True
        for number in range(self._rows):
            if self.log is AUDIT:
                self.trail.audit(vended() if number % 10 == 9 else commit())
            else:
                self.trail.report("jupyter", "silver.flights_by_day", SCAN)
        self.now_s += WRITE_EVERY_S
        self.lake.clock.now_s += WRITE_EVERY_S
        self.trail.write()
        self._wanted += self._rows
        self._left, self._turns = self._left - 1, 0
        return False

    def bytes_of(self, prefix: str, store: ObjectStore) -> int:
        """How many bytes the objects below a prefix have."""
        found = (store.get(listed.key) for listed in store.list(prefix))
        return sum(len(one.data) for one in found if one is not None)

    def found(self, hours: float) -> str:
        """What log and table take, per hour and per row."""
        table = self.lake.table(f"{NAMESPACE}.{self.log.table}")
        live = [one.data_file for one in self.lake.files(f"{NAMESPACE}.{self.log.table}", table)]
        sizes = {
            "log": self.bytes_of(self.log.prefix, self.store),
            f"table, {len(live)} live files": sum(one.file_size_in_bytes for one in live),
            "table with what the reaper deletes": self.bytes_of(
                table.root.removeprefix("s3://tarn/") + "/", self.lake.store
            ),
        }
        text = f"{self.log.table}: {self.rows() / hours:,.0f} rows an hour"
        for what, size in sizes.items():
            text += f"; {what}: {size / hours / 1e6:.2f} MB an hour ({size / self.rows():.0f} bytes a row)"
        return text


def main() -> int:
    """Print the figures for an hour."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.trail_growth", description=__doc__)
    parser.add_argument("--rate", type=int, default=1, help="commits, and reports, per second (default 1)")
    parser.add_argument("--minutes", type=int, default=60, help="simulated minutes (default 60)")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    intervals = round(options.minutes * 60 / WRITE_EVERY_S)
    for log in LOGS:
        hour = Hour(log, rows=round(options.rate * WRITE_EVERY_S), intervals=intervals)
        hour.run()
        sys.stdout.write(f"{hour.found(options.minutes / 60)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
