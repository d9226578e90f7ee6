"""The soak client queries at a steady interval and continues after a failure; the lake's totals."""

from __future__ import annotations

from typing import Any

from tarn.cli.ports import Answer
from tarn.core.errors import NoSuchTableError, UnavailableError
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn_demo.bench.soak import QUESTIONS, lake, queries


class Clock:
    """Simulated seconds, which pass by sleeping and by queries."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Asked:
    """An engine that takes a quarter of a second per query and fails on the second one."""

    name = "trino"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked: list[str] = []

    def query(self, sql: str, *, rows_max: int = 0) -> Answer:
        self.asked.append(sql)
        self.clock.sleep(0.25)
        if len(self.asked) == 2:
            raise UnavailableError("Trino is away")
        return Answer(columns=(), rows=())


def test_questions_are_asked_until_the_time_is_over() -> None:
    clock = Clock()
    asked = Asked(clock)
    found = list(queries(asked, seconds=6.0, pause_s=1.0, clock=clock, sleep=clock.sleep))
    assert found == [{"ms": 250.0}, {"error": "Trino is away"}, *[{"ms": 250.0}] * 3]
    assert asked.asked == [*QUESTIONS, QUESTIONS[0]]


def test_the_lake_is_what_current_snapshots_say() -> None:
    def state(**summary: str) -> TableState:
        snapshot: dict[str, Any] = {"snapshot-id": 7, "summary": summary}
        refs = {"main": {"snapshot-id": 7, "type": "branch"}}
        return TableState({"snapshots": [snapshot], "refs": refs})

    tables = {
        TableName(("a",), "t"): state(**{"total-records": "5", "total-files-size": "90"}),
        TableName(("a", "b"), "empty"): TableState({"snapshots": []}),
    }

    class Catalog:
        def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
            return {(): [("a",)], ("a",): [("a", "b")]}.get(parent, [])

        def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
            return [t for t in (*tables, TableName(("a",), "gone")) if t.namespace == namespace]

        def load(self, table: TableName) -> TableState:
            if table not in tables:
                raise NoSuchTableError("gone")
            return tables[table]

    nothing = {"rows": 0, "live_bytes": 0, "live_files": 0, "snapshots": 0}
    assert lake(Catalog()) == {
        "tables": {
            "a.t": {"rows": 5, "live_bytes": 90, "live_files": 0, "snapshots": 1},
            "a.b.empty": nothing,
        }
    }
