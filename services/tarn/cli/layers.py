"""How far bronze, silver and gold are behind the topic that feeds them, and how old their newest event is.

Pure. Every layer carries, in its snapshot summaries, the offsets up to which it holds everything. Compared
with the topic's ends that is the lag; the newest message before these offsets is the newest event it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tarn.cli.ports import Bounds, TableFacts

STREAM = "flights"
BRONZE = "bronze.flight_events"
LAYERS = ("bronze", "silver", "gold")
IDLE_S = 60.0

Offsets = Mapping[int, int]


class Progress(StrEnum):
    """Where a layer stands.

    `idle` and `current` hold everything that was produced: of an idle one the newest event is old because
    nothing came for a minute, not because the layer is late.
    """

    EMPTY = "empty"
    BEHIND = "behind"
    CURRENT = "current"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far a layer is, as its tables say.

    Attributes:
        layer: its name.
        rows: of all its tables; None if one does not say.
        next: per partition the next offset that is not in it; of several tables the one least far.
    """

    layer: str
    rows: int | None
    next: Offsets

    @property
    def offsets(self) -> int:
        """How many offsets it has passed."""
        return sum(self.next.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerState:
    """A layer at one moment.

    Attributes:
        layer: its name.
        progress: where it stands.
        rows: of all its tables.
        offsets: how many it has passed.
        behind: offsets that were produced and are not in it; None if the topic cannot be asked.
        behind_bronze: offsets that bronze holds and it does not.
        newest: when the newest event in it was produced; None if unknown or empty.
        freshness_s: seconds from then to now.
    """

    layer: str
    progress: Progress
    rows: int | None
    offsets: int
    behind: int | None
    behind_bronze: int
    newest: datetime | None
    freshness_s: float | None


def places(tables: Sequence[TableFacts]) -> tuple[Place, ...]:
    """The layers that exist, as the facts of their tables tell."""
    found = []
    for layer in LAYERS:
        held = [facts for facts in tables if _is_of(facts, layer)]
        if not held:
            continue
        rows = [facts.rows for facts in held]
        found.append(
            Place(
                layer=layer,
                rows=None if None in rows else sum(n for n in rows if n is not None),
                next=min((_next(facts) for facts in held), key=lambda offsets: sum(offsets.values())),
            )
        )
    return tuple(found)


def topic_of(tables: Sequence[TableFacts]) -> str | None:
    """The topic that feeds the layers; None while bronze holds nothing."""
    bronze = next((facts for facts in tables if facts.name == BRONZE), None)
    stream = bronze.streams.get(STREAM) if bronze is not None else None
    return stream.source.topic if stream is not None else None


def judged(
    place: Place,
    bronze: Offsets,
    bounds: Bounds | None,
    newest: datetime | None,
    *,
    at: datetime,
) -> LayerState:
    """A layer against the topic.

    Args:
        place: how far it is.
        bronze: how far bronze is.
        bounds: first and end offset of each partition of the topic; None if it cannot be asked.
        newest: the time of the newest message before the place.
        at: now.
    """
    behind = None if bounds is None else lag(place.next, bounds)
    age_s = None if newest is None else max(0.0, (at - newest).total_seconds())
    return LayerState(
        layer=place.layer,
        progress=_progress(place, behind, age_s),
        rows=place.rows,
        offsets=place.offsets,
        behind=behind,
        behind_bronze=sum(max(0, end - place.next.get(p, 0)) for p, end in bronze.items()),
        newest=newest,
        freshness_s=age_s,
    )


def lag(done: Offsets, bounds: Bounds) -> int:
    """Offsets that a topic holds from `done` on; of a partition not in `done`, all that it still holds."""
    return sum(max(0, end - done.get(p, first)) for p, (first, end) in bounds.items())


def _progress(place: Place, behind: int | None, age_s: float | None) -> Progress:
    if not place.offsets:
        return Progress.EMPTY
    if behind is None:
        return Progress.UNKNOWN
    if behind:
        return Progress.BEHIND
    return Progress.IDLE if age_s is not None and age_s > IDLE_S else Progress.CURRENT


def _is_of(facts: TableFacts, layer: str) -> bool:
    return facts.name == BRONZE if layer == "bronze" else facts.name.startswith(f"{layer}.")


def _next(facts: TableFacts) -> Offsets:
    if facts.name == BRONZE:
        stream = facts.streams.get(STREAM)
        return stream.next if stream is not None else {}
    return facts.position or {}
