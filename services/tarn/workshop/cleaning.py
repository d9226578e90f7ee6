"""The reset cell: what a notebook made is dropped, in the order in which it may go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

ENDS_S = 45.0


def clean(lab: Lab, names: Sequence[str]) -> list[str]:
    """Drop a student's ingestors, tables and topics of these names; return what there was.

    Ingestors go first and are waited for, as they would make their table again.

    Raises:
        UnavailableError: the catalog, the store or Kafka does not answer.
        TimeoutError: an ingestor does not end.
    """
    found = []
    for name in names:
        ingestor = f"ws-{lab.student}-{name}"
        if lab.ingestors.delete(ingestor):
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
    return found
