"""How far the tables of the demo are, by their snapshots in the REST catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyiceberg.table import Table

from tarn.cli.clients.lake import RestLake, newest_offsets
from tarn.core.errors import DataError, NoSuchTableError
from tarn_demo.flights.events import Kind
from tarn_demo.loading import GOLD_TABLES, LayerProgress
from tarn_jobs import position
from tarn_jobs.pipeline import STREAM
from tarn_jobs.schema import BRONZE, SILVER, heard


class FlightTables(RestLake):
    """`loading.Lake` and `demo_summary.Tables` over the REST catalog."""

    def layers(self) -> dict[str, LayerProgress]:
        """See `loading.Lake`."""
        found = self.by_table()
        gold = [found[f"gold.{name}"] for name in GOLD_TABLES]
        return {
            "bronze": found[BRONZE],
            "silver": found[SILVER.name],
            "gold": LayerProgress(
                rows=sum(t.rows for t in gold), next=min(gold, key=lambda t: t.offsets).next
            ),
        }

    def by_table(self) -> dict[str, LayerProgress]:
        """See `demo_summary.Tables`."""
        names = (SILVER.name, *(f"gold.{name}" for name in GOLD_TABLES))
        return {BRONZE: self._bronze(), **{name: self._layer(name) for name in names}}

    def event_counts(self) -> Mapping[Kind, int]:
        """See `loading.Lake`."""
        columns = {kind: heard(kind.name.lower()).name for kind in Kind}

        def work() -> dict[Kind, int]:
            rows = self._load(SILVER.name).scan(selected_fields=tuple(columns.values())).to_arrow()
            return {kind: rows.num_rows - rows[column].null_count for kind, column in columns.items()}

        try:
            return self._call(work, SILVER.name)
        except NoSuchTableError:
            return {}

    def _bronze(self) -> LayerProgress:
        def work() -> LayerProgress:
            table = self._load(BRONZE)
            return LayerProgress(rows=_rows(table), next=newest_offsets(table, STREAM) or {})

        return self._or_empty(work, BRONZE)

    def _layer(self, name: str) -> LayerProgress:
        """How far a table of the pipeline is.

        Raises:
            DataError: its position is gone or unreadable, which stops the pipeline too; says what to do.
        """

        def work() -> LayerProgress:
            table = self._load(name)
            try:
                text = _newest(table)
                done = position.Position.from_json(text) if text is not None else None
            except position.PositionError as e:
                raise DataError(f"{name}: {e}", table=name) from e
            return LayerProgress(rows=_rows(table), next=dict(done.next) if done is not None else {})

        return self._or_empty(work, name)

    def _or_empty(self, work: Callable[[], LayerProgress], table: str) -> LayerProgress:
        try:
            return self._call(work, table)
        except NoSuchTableError:
            return LayerProgress()


def _newest(table: Table) -> str | None:
    """The newest position among the current snapshot and its ancestors."""
    current = table.metadata.current_snapshot_id
    snapshots = [
        position.Snapshot(
            id=s.snapshot_id,
            parent=s.parent_snapshot_id,
            value=s.summary.additional_properties.get(position.PROPERTY) if s.summary else None,
            current=s.snapshot_id == current,
        )
        for s in table.metadata.snapshots
    ]
    return position.newest(snapshots)[1]


def _rows(table: Table) -> int:
    snapshot = table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties.get("total-records", 0))
