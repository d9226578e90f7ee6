"""Which faults the real stack gets, and how; the others are simulated only, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RealFault:
    """A fault of the real stack.

    Attributes:
        how: what is done to which container, for the page.
        plan: what the proxy before the catalog does to commits, `kind count`; empty for nothing.
        engines: number of engines on the table; the second one does not pass through the proxy.
        action: method of `real_round.Round` that injects the fault; empty if the plan is all of it.
        store: whether the proxy is before the store, for a catalog process that the first engine has alone.
        alone: whether it breaks what rounds beside it need.
        lasts_s: about how long a round waits for the fault itself, in seconds; the longest begin first.
    """

    how: str
    plan: tuple[str, ...] = ()
    engines: int = 1
    action: str = ""
    store: bool = False
    alone: bool = False
    lasts_s: float = 0.0


REAL: dict[int, RealFault] = {
    1: RealFault(how="the engine is killed three times while it writes", action="kill_engine"),
    2: RealFault(how="the catalog is killed while the engine commits", action="kill_catalog", alone=True),
    3: RealFault(
        how="the proxy takes the answer of a commit, and the engine is killed", action="kill_over_reply"
    ),
    4: RealFault(how="the proxy drops the answers of commits", plan=("reply 3",)),
    5: RealFault(
        how="the proxy drops the answers of one engine's commits, another engine commits on top",
        plan=("reply 3",),
        engines=2,
    ),
    6: RealFault(
        how="the proxy answers 500, 502 or 504, before or after it forwards, or cuts the connection",
        plan=("cut 2", "500 2", "502 2", "504 2", "500-done 2", "502-done 2", "504-done 2"),
    ),
    7: RealFault(
        how="two engines commit at once, the proxy holds one for a second: 409 by the catalog",
        plan=("held 3",),
        engines=2,
        action="wait_for_conflicts",
    ),
    8: RealFault(
        how="a second catalog process reaches the store through a proxy, which answers 409 or 503, or cuts",
        plan=("503 2", "503-done 2", "409 2", "reply 2", "cut 1"),
        engines=2,
        store=True,
    ),
    10: RealFault(
        how="an engine is frozen for 20 s beside another", engines=2, action="freeze_engine", lasts_s=20
    ),
    11: RealFault(
        how="two engines read all partitions at once, and the proxy holds commits of one for a second",
        plan=("held 6",),
        engines=2,
        action="wait_for_conflicts",
    ),
    12: RealFault(how="the engine is killed six times in quick succession", action="kill_often"),
    16: RealFault(
        how="a third of the records is broken, the engine is killed meanwhile", action="kill_engine"
    ),
    19: RealFault(how="the proxy answers 504 and forwards the commit 3 s later", plan=("late 3",)),
    22: RealFault(
        how="the proxy holds a commit for 75 s, beside a reaper with 60 s of grace",
        plan=("slow 1",),
        lasts_s=75,
    ),
    23: RealFault(
        how="the store is killed, or frozen for 20 s; so is the broker", action="stop_store", alone=True
    ),
}

NOT_REAL: dict[int, str] = {
    9: "32 writers on the real catalog are in tests/integration/catalog/test_image.py",
    13: "offsets of a group and a log's start are changed by Kafka's administrator only",
    14: "topics are recreated in tests/contract/ingest/test_faults.py and tests/integration/kafka",
    15: "rollbacks are in tests/contract/cli/test_rollback.py",
    17: "transactions of a real broker are in tests/integration/kafka/test_records.py",
    20: "needs a merge at a known moment",
    21: "needs two requests at a known moment",
    24: "containers share the clock of the machine",
    25: "needs the steps of single requests",
}
