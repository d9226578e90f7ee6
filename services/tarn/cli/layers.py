"""How far the layers of the lake are behind the topic that feeds them, and how old their newest event is.

Pure. A layer is a namespace of tables fed by one topic. Tables say so in their snapshot summaries: an
ingested one by its offset map, a derived one by `tarn.position`. Both are the offsets up to which the table
holds everything. Compared with the topic's ends that is the lag; the newest message before them is the newest
event in the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tarn.cli.ports import Bounds, TableFacts

LAYERS = ("bronze", "silver", "gold")
"""Namespaces by convention, in order: what is ingested, what is made of it, what answers."""
IDLE_S = 60.0

Offsets = Mapping[int, int]


class Progress(StrEnum):
    """How up to date a layer is.

    `idle` and `current` hold everything that was produced: of an idle one the newest event is old because
    nothing came for a minute, not because the layer is late.
    """

    EMPTY = "empty"
    BEHIND = "behind"
    CURRENT = "current"
    IDLE = "idle"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """How far the tables of one namespace are in one topic.

    Attributes:
        layer: the namespace.
        topic: what feeds it; None while none of its tables says so.
        ingested: whether ingest writes it, rather than a job that reads an ingested table.
        rows: of all its tables; None if one does not say.
        next: per partition the next offset that is not in it; of several tables the one least far.
    """

    layer: str
    topic: str | None
    ingested: bool
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
        topic: what feeds it; None if unknown.
        progress: how up to date it is.
        rows: of all its tables.
        offsets: how many it has passed.
        behind: offsets that were produced and are not in it; None if the topic cannot be asked.
        behind_bronze: offsets that the ingested layer holds and it does not.
        newest: when the newest event in it was produced; None if unknown or empty.
        freshness_s: seconds from then to now.
    """

    layer: str
    topic: str | None
    progress: Progress
    rows: int | None
    offsets: int
    behind: int | None
    behind_bronze: int
    newest: datetime | None
    freshness_s: float | None


def layers_of(tables: Sequence[TableFacts]) -> tuple[Layer, ...]:
    """The layers that exist: topic by topic, what is ingested first, then in the order of `LAYERS`.

    Found by what tables carry: those with a position, the ingested tables that these were made from, and the
    ingested tables of the namespace bronze. A table of one of the `LAYERS` that was never written to holds
    nothing; any other table is not part of a layer.
    """
    read = {facts.position.table for facts in tables if facts.position is not None} - {""}
    found = [layer for facts in tables for layer in _layers_with(facts, read)]
    topics = {layer.topic for layer in found}
    topic = topics.pop() if len(topics) == 1 else None
    found += [_unwritten(facts, topic) for facts in tables if _is_unwritten(facts)]
    groups: dict[tuple[str | None, str], list[Layer]] = {}
    for layer in found:
        groups.setdefault((layer.topic, layer.layer), []).append(layer)
    return tuple(sorted((_together(held) for held in groups.values()), key=_order))


def judged(
    layer: Layer,
    ingested: Offsets,
    bounds: Bounds | None,
    newest: datetime | None,
    *,
    at: datetime,
) -> LayerState:
    """A layer against its topic.

    Args:
        layer: how far it is.
        ingested: how far the ingested layer of the same topic is.
        bounds: first and end offset of each partition of the topic; None if it cannot be asked.
        newest: the time of the newest message before the layer's offsets.
        at: now.
    """
    behind = None if bounds is None else lag(layer.next, bounds)
    age_s = None if newest is None else max(0.0, (at - newest).total_seconds())
    return LayerState(
        layer=layer.layer,
        topic=layer.topic,
        progress=_progress(layer, behind, age_s),
        rows=layer.rows,
        offsets=layer.offsets,
        behind=behind,
        behind_bronze=sum(max(0, end - layer.next.get(p, 0)) for p, end in ingested.items()),
        newest=newest,
        freshness_s=age_s,
    )


def lag(done: Offsets, bounds: Bounds) -> int:
    """Offsets that a topic holds from `done` on; of a partition not in `done`, all that it still holds."""
    return sum(max(0, end - done.get(p, first)) for p, (first, end) in bounds.items())


def _progress(layer: Layer, behind: int | None, age_s: float | None) -> Progress:
    if not layer.offsets:
        return Progress.EMPTY
    if behind is None:
        return Progress.UNKNOWN
    if behind:
        return Progress.BEHIND
    return Progress.IDLE if age_s is not None and age_s > IDLE_S else Progress.CURRENT


def _layers_with(facts: TableFacts, read: set[str]) -> list[Layer]:
    """The layers that a table is in, as far as it alone shows.

    Args:
        facts: the table.
        read: locations of the tables that others are derived from.
    """
    layer, at = _namespace(facts), facts.position
    if at is not None:
        return [Layer(layer=layer, topic=at.topic or None, ingested=False, rows=facts.rows, next=at.next)]
    if layer != LAYERS[0] and facts.location not in read:
        return []
    return [
        Layer(layer=layer, topic=held.source.topic, ingested=True, rows=facts.rows, next=held.next)
        for held in facts.streams.values()
    ]


def _unwritten(facts: TableFacts, topic: str | None) -> Layer:
    layer = _namespace(facts)
    return Layer(layer=layer, topic=topic, ingested=layer == LAYERS[0], rows=facts.rows, next={})


def _is_unwritten(facts: TableFacts) -> bool:
    return facts.last_commit is None and not facts.streams and _namespace(facts) in LAYERS


def _together(held: Sequence[Layer]) -> Layer:
    """One layer, from what its tables carry; it is as far as the one least far."""
    rows = [layer.rows for layer in held]
    return Layer(
        layer=held[0].layer,
        topic=held[0].topic,
        ingested=any(layer.ingested for layer in held),
        rows=None if None in rows else sum(n for n in rows if n is not None),
        next=min((layer.next for layer in held), key=lambda offsets: sum(offsets.values())),
    )


def _order(layer: Layer) -> tuple[bool, str, bool, int, str]:
    place = LAYERS.index(layer.layer) if layer.layer in LAYERS else len(LAYERS)
    return (layer.topic is None, layer.topic or "", not layer.ingested, place, layer.layer)


def _namespace(facts: TableFacts) -> str:
    return facts.name.partition(".")[0]
