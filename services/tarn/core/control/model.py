"""What the controller wants, what it sees, and what it may do about the difference. Pure.

    Wanted      an ingestor, as its spec says
    WorkerSeen  a writer, as its driver says
    Action      Start | Drain | Kill | Collect | Finalize

A writer is one replica of one topic of one ingestor, at one revision of its spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tarn.core.spec import IngestorSpec


class Phase(StrEnum):
    """Phase of a writer."""

    RUNNING = "Running"
    DRAINING = "Draining"
    ENDED = "Ended"


class Wish(StrEnum):
    """What is wanted of an ingestor.

    HOLD: its writers stay as they are, as its spec cannot be read or is refused, or a clash is not settled.
    STOP: it has no writers, and may begin again.
    DELETE: it has no writers, and its object becomes a tombstone then.
    """

    RUN = "Run"
    HOLD = "Hold"
    STOP = "Stop"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class WorkerId:
    """A writer.

    Attributes:
        ingestor: name of the ingestor.
        topic: the topic that it reads.
        replica: number of the replica, from 0.
        revision: what it runs; see `revision_of`.
    """

    ingestor: str
    topic: str
    replica: int
    revision: str

    def __str__(self) -> str:
        return f"{self.ingestor}/{self.topic}/{self.replica}@{self.revision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A writer as its driver says.

    Attributes:
        id: the writer.
        phase: its phase.
        since_s: when the phase began, in seconds of the driver's monotonic clock.
        started_s: when the writer was started, likewise.
        ready: whether it reads and commits.
        reason: why it ended, in one word; empty if nothing went wrong.
        message: the same, for people.
    """

    id: WorkerId
    phase: Phase
    since_s: float
    started_s: float
    ready: bool = False
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An ingestor.

    Attributes:
        name: its name.
        wish: what is wanted of it.
        revision: what its writers run.
        spec: its spec; None where that cannot be read.
        topics: topics that it reads; None while a pattern was not compared with them yet.
        generation: version of the spec; 0 of a built-in one.
        uid: uid of its object; empty of a built-in one, and of one whose object is unreadable.
        built_in: whether it is part of Tarn, and has no object.
        reason: why it is not `RUN`, in one word; empty if it is.
        message: the same, for people.
    """

    name: str
    wish: Wish
    revision: str = ""
    spec: IngestorSpec | None = None
    topics: tuple[str, ...] | None = None
    generation: int = 0
    uid: str = ""
    built_in: bool = False
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """How often a writer died in a row.

    Attributes:
        count: number of times.
        last_s: when it died last, in seconds of the driver's clock.
        reason: why, in one word.
        message: the same, for people.
    """

    count: int
    last_s: float
    reason: str
    message: str


Crashes = Mapping[WorkerId, Crash]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a writer; one that is there already is left as it is."""

    id: WorkerId
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Ask a writer to end: it finishes the commit that is under way, and reads no more."""

    id: WorkerId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End a writer that does not end by itself; what it has not committed is read again."""

    id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Remove what is left of a writer that has ended."""

    id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalize:
    """Make the object of a deleted ingestor a tombstone."""

    name: str
    uid: str


Action = Start | Drain | Kill | Collect | Finalize


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do now.

    Attributes:
        actions: in order.
        crashes: what is known of writers that died, once the actions are done.
        due_s: when to plan again although nothing changes, in seconds of the driver's clock; None: never.
    """

    actions: tuple[Action, ...] = ()
    crashes: Crashes = field(default_factory=dict)
    due_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of the planner, in seconds.

    Attributes:
        drain_s_max: how long a writer may take to end.
        backoff_s: wait before a writer that died is started again, doubled per time in a row.
        backoff_s_max: longest such wait.
        stable_s: a writer that ran for so long did not die at once: its count begins again.
    """

    drain_s_max: float = 30.0
    backoff_s: float = 1.0
    backoff_s_max: float = 300.0
    stable_s: float = 60.0

    def wait_s(self, count: int) -> float:
        """Wait after so many deaths in a row."""
        return min(self.backoff_s_max, self.backoff_s * 2.0 ** min(max(0, count - 1), 32))
