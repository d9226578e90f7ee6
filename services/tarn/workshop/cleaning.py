"""The reset cell: what a notebook made is dropped, in the order in which it may go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tarn.core.log_claims import TOPIC_PREFIX, claims_topic_of

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

ENDS_S = 45.0


@dataclass(slots=True)
class Cleaned:
    """What became of what a notebook made.

    Attributes:
        dropped: what was dropped, in words.
        left: topics of the gateway's log, which only the lake's own keys may delete: they hold rows that were
            acknowledged, and their names do not say whose.
    """

    dropped: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def clean(lab: Lab, names: Sequence[str]) -> Cleaned:
    """Drop a student's ingestors, tables and topics of these names; return what there was.

    Ingestors go first and are waited for, as they would make their table again.

    Raises:
        UnavailableError: the catalog, the store or Kafka does not answer.
        TimeoutError: an ingestor does not end.
    """
    cleaned = Cleaned()
    found = cleaned.dropped
    for name in names:
        ingestor = f"ws-{lab.student}-{name}"
        logs = [topic for topic in lab.ingestors.topics(ingestor) if topic.startswith(TOPIC_PREFIX)]
        if lab.ingestors.delete(ingestor):
            for topic in logs:
                cleaned.left += [topic, claims_topic_of(topic.removeprefix(TOPIC_PREFIX))]
            lab.until(lambda of=ingestor: lab.ingestors.gone(of), f"{ingestor} to end", seconds=ENDS_S)  # type: ignore[misc]
            found.append(f"ingestor {ingestor}")
    there = {one[-1] for one in lab.catalog.list_tables(lab.namespace)}
    for name in sorted(there):
        if name in names:
            lab.catalog.drop_table((lab.namespace, name))
            found.append(f"table {lab.namespace}.{name}")
    if "kafka" in lab.about.needs:
        for name in names:
            topic = f"workshop.{lab.student}.{name}"
            if lab.topics.delete(topic):
                found.append(f"topic {topic}")
    return cleaned
