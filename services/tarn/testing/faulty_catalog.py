"""A catalog whose commits fail at random, for tests of committers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tarn.core.errors import UnavailableError
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import CommitRequest, TableState


@dataclass
class Faults:
    """Random faults of commits.

    `lost`: the request is lost. `reply`: it is applied, the response is lost. `late`, `late-twice`: no
    response, and it arrives later. `lie`: it is applied, the response is a conflict. `away`: nothing was
    sent. `foreign`: another client commits first.

    Attributes:
        chance: random number generator.
        rate: share of the commits that fail, from 0 to 1.
        late: requests under way; they are applied before a later request of any client.
        counts: number of commits per kind; `fine` are those without a fault.
        kinds: kinds to choose from.
    """

    chance: random.Random
    rate: float
    late: list[Callable[[], object]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("lost", "reply", "late", "late-twice", "lie", "away", "foreign")

    def pick(self) -> str:
        """The kind of the next commit; `fine` without a fault."""
        kind = self.chance.choice(self.kinds) if self.chance.random() < self.rate else "fine"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return kind

    def land_some(self) -> None:
        """Apply some late requests, in random order."""
        while self.late and self.chance.random() < 0.5:
            self.late.pop(self.chance.randrange(len(self.late)))()

    def land_all(self) -> None:
        """Apply all late requests."""
        while self.late:
            self.late.pop()()


class FaultyCatalog:
    """A `TableCatalog` that loses, delays, duplicates and denies requests on their way to another.

    Args:
        inner: the catalog.
        faults: which commits fail, and how.
        foreign: commits to a table as another client.
    """

    def __init__(self, inner: TableCatalog, faults: Faults, *, foreign: Callable[[TableName], None]) -> None:
        self._inner = inner
        self._faults = faults
        self._foreign = foreign
        self.create_namespace = inner.create_namespace
        self.create = inner.create

    def load(self, table: TableName) -> TableState:
        """See `TableCatalog.load`."""
        self._faults.land_some()
        return self._inner.load(table)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        """See `TableCatalog.commit`."""
        faults = self._faults
        faults.land_some()
        kind = faults.pick()

        def send() -> CommitOutcome:
            return self._inner.commit(table, request, key=key)

        if kind == "lost":
            return Unknown(reason="the request was lost")
        if kind == "reply":
            send()
            return Unknown(reason="504: the reply was lost")
        if kind == "late":
            faults.late.append(send)
            return Unknown(reason="the request is under way")
        if kind == "late-twice":
            faults.late += [send, send]
            return Unknown(reason="the request is under way, twice")
        if kind == "lie":
            # A proxy resent it: it was applied, and the second one was rejected.
            send()
            return Conflict(reason="409 after a resend")
        if kind == "away":
            raise UnavailableError("the catalog is away")
        if kind == "foreign":
            self._foreign(table)
        return send()
