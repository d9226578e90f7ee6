"""Reads and writes of one Spark session; the only module that uses Iceberg's metadata tables and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from tarn_jobs import statements
from tarn_jobs.position import PositionError, Snapshot
from tarn_jobs.schema import Column, Table
from tarn_jobs.statements import SOURCE, Merge

_SUMMARY_CONF = "spark.sql.iceberg.snapshot-property."
MAIN = "main"
LOOKS_MAX = 3


class TableMismatchError(Exception):
    """A table has other columns than the jobs need. The message names the columns and the remedy."""


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables as seen by one Spark session.

    Attributes:
        spark: the session, classic or Connect.
        catalog: the catalog's name in Spark.
    """

    spark: SparkSession
    catalog: str

    def name(self, table: str) -> str:
        """Return the table's name qualified with the catalog."""
        return f"{self.catalog}.{table}"

    def exists(self, table: str) -> bool:
        """Return whether the table exists."""
        return bool(self.spark.catalog.tableExists(self.name(table)))

    def ensure_namespaces(self, names: tuple[str, ...]) -> None:
        """Create the missing namespaces."""
        for name in names:
            self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.name(name)}")

    def ensure_table(self, table: Table) -> None:
        """Create the table if it is missing; add missing properties to a table of an earlier version.

        Raises:
            TableMismatchError: the table has other columns.
        """
        name = self.name(table.name)
        if not self.exists(table.name):
            self.spark.sql(statements.create_table(table, name))
        self.require_columns(table.name, {c.name: c.type for c in table.columns})
        found = {row.key: row.value for row in self.spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        change = statements.missing_properties(name, found)
        if change is not None:
            self.spark.sql(change)

    def add_columns(self, table: str, columns: Sequence[Column]) -> None:
        """Add columns to a table; its rows have null in them."""
        self.spark.sql(statements.add_columns(columns, self.name(table)))

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the table's columns."""
        return frozenset(self.spark.table(self.name(table)).columns)

    def require_columns(self, table: str, columns: Mapping[str, str]) -> None:
        """Require that the table has these columns with these types (it may have more).

        Raises:
            TableMismatchError: a column is missing or has another type.
        """
        schema = self.spark.table(self.name(table)).schema
        found = {f.name: f.dataType.simpleString() for f in schema.fields}
        wrong = [
            f"{name} is {found.get(name, 'missing')}, needed is {needed}"
            for name, needed in columns.items()
            if found.get(name) != needed
        ]
        if wrong:
            raise TableMismatchError(
                f"{table} is not as the pipeline needs it: {'; '.join(wrong)}; change it back, or drop the "
                "tables that the pipeline makes (silver, gold, ref) and let it make them again"
            )

    def snapshots(self, table: str, entry: str, *, tag: str = "") -> list[Snapshot]:
        """Return all snapshots of a table with one entry of their summaries; see `snapshots_of`."""
        return self.snapshots_of((table,), entry, tag=tag)[table]

    def snapshots_of(self, tables: Sequence[str], entry: str, *, tag: str = "") -> dict[str, list[Snapshot]]:
        """Return all snapshots of tables with one entry of their summaries, by one query.

        Args:
            tables: the tables' names.
            entry: the key in the summaries.
            tag: the tag that moves with the commits that carry the entry; empty for none.

        Returns:
            Table to its snapshots, in the order in which Iceberg lists them.
        """
        # A table is loaded once for its branches and once for its snapshots, the branches first: they point
        # at snapshots that the later version still has, unless it was rolled back between the two.
        for _ in range(LOOKS_MAX):
            rows = self.spark.sql(statements.snapshots([(t, self.name(t)) for t in tables], entry)).collect()
            refs = {(r.of_table, r.ref): r.snapshot_id for r in rows if r.ref is not None}
            found: dict[str, list[Snapshot]] = {table: [] for table in tables}
            for r in rows:
                if r.ref is not None:
                    continue
                found[r.of_table].append(
                    Snapshot(
                        id=r.snapshot_id,
                        parent=r.parent_id,
                        value=r.value,
                        current=refs.get((r.of_table, MAIN)) == r.snapshot_id,
                        tagged=bool(tag) and refs.get((r.of_table, tag)) == r.snapshot_id,
                        at_us=r.at_us,
                        delete_files=r.delete_files or 0,
                        operation=r.operation,
                    )
                )
            if all(any(s.current for s in found[t]) for t in tables if (t, MAIN) in refs):
                return found
        raise PositionError(
            f"{', '.join(tables)}: the main branch points at a snapshot that the table does not have, "
            f"{LOOKS_MAX} times in a row; who else commits to it? scripts/tarn fsck says whether it is whole"
        )

    def current_snapshot(self, table: str) -> str | None:
        """Return the id of the table's current snapshot; None without a table or snapshot.

        It is one request to the catalog: Spark runs no job for it.
        """
        try:
            rows = self.spark.sql(f"SHOW TBLPROPERTIES {self.name(table)}").collect()
        except AnalysisException as e:
            if "TABLE_OR_VIEW_NOT_FOUND" in (e.getCondition() or str(e)):
                return None
            raise
        found = {row.key: row.value for row in rows}.get("current-snapshot-id", "none")
        return None if found == "none" else str(found)

    def location(self, table: str) -> str:
        """Return the table's location; two tables never share a location."""
        rows = self.spark.sql(f"DESCRIBE TABLE EXTENDED {self.name(table)}").collect()
        return next(str(r.data_type) for r in rows if r.col_name == "Location")

    def at(self, table: str, snapshot_id: int) -> DataFrame:
        """Return the table as of a snapshot."""
        return self.spark.sql(f"SELECT * FROM {self.name(table)} VERSION AS OF {snapshot_id}")  # noqa: S608

    def changes(self, table: str, *, after: int, until: int) -> DataFrame:
        """Return the rows that commits removed (`sign` -1) and added (`sign` 1), as often as they did so.

        Only the files that these commits removed and added are read. A row that they copied into another
        file is in the result with both signs.

        Args:
            table: the table; without delete files since `after`, which Iceberg cannot read in this way.
            after: the snapshot before the first of the commits.
            until: the snapshot of the last one, a descendant of `after`.
        """
        bounds = {"start-snapshot-id": str(after), "end-snapshot-id": str(until)}
        rows = self.spark.read.options(**bounds).table(f"{self.name(table)}.changes")
        return rows.withColumn("sign", fn.when(fn.col("_change_type") == "DELETE", -1).otherwise(1))

    def table(self, table: str) -> DataFrame:
        """Return the current table."""
        return self.spark.table(self.name(table))

    def merge(self, merge: Merge, source: DataFrame, summary: Mapping[str, str]) -> None:
        """Run a MERGE in one commit whose snapshot summary carries these entries.

        Not as SQL over a temporary view: Spark 4.1 fails to plan a MERGE over a view that reads tables.

        Args:
            merge: the target, the join condition, which rows are updated to what, and what is inserted.
            source: the source rows.
            summary: entries of the snapshot summary.
        """
        into = source.alias(SOURCE).mergeInto(self.name(merge.table), fn.expr(merge.on))
        into = into.whenMatched(fn.expr(merge.when)).update({c: fn.expr(e) for c, e in merge.updates.items()})
        # Not all columns of the target: somebody may have added one, which the source does not have.
        row = {c: fn.expr(f"{SOURCE}.`{c}`") for c in merge.inserts}
        with self._summary(summary):
            into.whenNotMatched().insert(row).merge()

    def replace(
        self, table: str, rows: DataFrame, summary: Mapping[str, str], *, since: int | None = None
    ) -> None:
        """Replace all rows of a table in one commit.

        Args:
            table: the table's name.
            rows: the new rows, with the table's columns.
            summary: entries of the snapshot summary.
            since: the snapshot that the new rows were made from: if other rows were committed after it, the
                commit fails and changes nothing. None replaces whatever is there.
        """
        into = rows.writeTo(self.name(table))
        if since is not None:
            into = into.options(
                **{"isolation-level": "serializable", "validate-from-snapshot-id": str(since)}
            )
        with self._summary(summary):
            into.overwrite(fn.lit(True))

    def mark(self, table: str, summary: Mapping[str, str]) -> None:
        """Commit without changing a row; the snapshot only carries the summary's entries."""
        with self._summary(summary):
            self.table(table).limit(0).writeTo(self.name(table)).append()

    @contextmanager
    def kept(self, rows: DataFrame) -> Iterator[DataFrame]:
        """Cache the rows for the duration of the block, so that they are computed once."""
        cached = rows.persist()
        try:
            yield cached
        except BaseException:
            with suppress(PySparkException):
                cached.unpersist()
            raise
        cached.unpersist()

    def forget_kept(self) -> None:
        """Drop all rows that any session has cached; a session that still needs some computes them again.

        A session that ends, or whose client is killed, leaves what it cached to Spark for good.
        """
        self.spark.catalog.clearCache()

    @contextmanager
    def _summary(self, entries: Mapping[str, str]) -> Iterator[None]:
        """Set the summary entries of all commits that this session makes in the block.

        Iceberg reads them from session settings. After a failure they are unset if the session still works;
        the original error is raised.
        """
        for key, value in entries.items():
            self.spark.conf.set(_SUMMARY_CONF + key, value)
        try:
            yield
        except BaseException:
            with suppress(PySparkException):
                self._forget(entries)
            raise
        self._forget(entries)

    def _forget(self, entries: Mapping[str, str]) -> None:
        for key in entries:
            self.spark.conf.unset(_SUMMARY_CONF + key)
