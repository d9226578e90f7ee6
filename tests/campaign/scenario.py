"""What a fault is: when it happens, what it changes in the world, and what else must hold at its end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn_catalog.testing.faulty_store import Fault, Op
from tests.support.lake import order

if TYPE_CHECKING:
    from tests.campaign.engine import Engine
    from tests.campaign.watch import Version
    from tests.campaign.world import Sim

FAULTS: dict[int, type[Scenario]] = {}
"""Number of the fault in shared/reliability.md -> its scenario."""


class Scenario:
    """One fault; a run makes one of it. Hooks are called by the world, and decide what happens.

    Attributes:
        number: number of the fault.
        name: short name.
        what: what happens, and what must follow, for the page.
        issues: issues whose list has it.
        happened: how often it happened in this run; a run where it did not is not counted.
        stops: reasons for which an engine may stop in this run.
        deleted: places of rows that another engine deleted.
        former: (partition, offset, id) of further records that must be in the table.
        other_rows: whether rows of other topics may be in the table, so that a reader cannot compare.
    """

    number: ClassVar[int]
    name: ClassVar[str]
    what: ClassVar[str]
    issues: ClassVar[tuple[int, ...]] = (11, 12)
    thin: ClassVar[bool | None] = None
    merges: ClassVar[bool] = False
    reaper: ClassVar[bool] = False
    bad_share: ClassVar[float] = 0.08
    registry: ClassVar[dict[int, Any]] = FAULTS

    def __init_subclass__(cls) -> None:
        """Enter the fault in its registry."""
        if "number" in vars(cls):
            assert cls.number not in cls.registry, cls
            cls.registry[cls.number] = cls

    def __init__(self) -> None:
        self.happened = 0
        self.stops: frozenset[str] = frozenset()
        self.deleted: set[tuple[int, int]] = set()
        self.former: list[tuple[int, int, int | None]] = []
        self.other_rows = False
        self.sim: Sim

    # -- what a run is like

    def begin(self, sim: Sim) -> None:
        """Draw when the fault happens; called once, before anything runs."""
        self.sim = sim
        self.draw(sim.chance)

    def draw(self, chance: random.Random) -> None:
        """Draw what this fault needs."""

    def engines(self, chance: random.Random) -> int:
        """Number of ingest engines on the table."""
        return chance.choice((1, 2))

    def format_version(self, chance: random.Random) -> int:
        """Format version of the table."""
        return chance.choice((2, 2, 3))

    def skew_ms(self, chance: random.Random) -> int:
        """How far off a process's wall clock is, in milliseconds."""
        return 0

    def record(self, chance: random.Random, number: int) -> Any:
        """The value of the next record."""
        return b"junk %d" % number if chance.random() < self.bad_share else order(number)

    def actors(self) -> dict[str, Callable[[], None]]:
        """Further actors."""
        return {}

    def content(self) -> bool:
        """Whether engines may end once all is ingested."""
        return True

    # -- what happens meanwhile

    def op(self, who: str, op: Op) -> Fault | None:
        """The fault of an operation of the store, by a process: `engine-0`, `catalog-1`, `reaper`."""
        return None

    def request(self) -> str:
        """The fault of a commit request on its way, one of `tarn.testing.faulty_catalog`."""
        return "fine"

    def replied(
        self, engine: Engine, table: TableName, request: CommitRequest, outcome: CommitOutcome
    ) -> None:
        """A commit was answered, and the answer is on its way."""

    def polled(self, engine: Engine) -> None:
        """An engine polls its topic."""

    def grouped(self, engine: Engine) -> None:
        """An engine commits its group offsets."""

    def moved(self, version: Version) -> None:
        """The table has a new version."""

    def foreign(self) -> None:
        """Another engine commits just before our request: the fault `foreign` of a request."""
        self.sim.foreign()

    # -- the end

    def ended(self) -> None:
        """The faults are over; what is broken is mended as a person would."""

    def check(self) -> None:
        """Require what holds for this fault only.

        Raises:
            AssertionError: it does not hold.
        """


def kind_of(key: str) -> str:
    """What an object is: data, manifest, list, metadata, pointer, record, or other."""
    if key.startswith("catalog/"):
        return "pointer" if "/pointers/" in key else "record" if "/transactions/" in key else "other"
    if key.endswith(".parquet"):
        return "data"
    if key.endswith(".metadata.json"):
        return "metadata"
    if "/snap-" in key:
        return "list"
    return "manifest" if key.endswith(".avro") else "other"


def of_orders(key: str) -> bool:
    """Whether an object belongs to the table of orders."""
    return "/orders" in key and "dead" not in key
