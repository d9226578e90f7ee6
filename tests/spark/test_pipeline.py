"""Bronze to gold on Spark equals the oracle: in parts, duplicated, late, broken, after crashes (I13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from tarn_demo.flights.events import NoiseRates
from tarn_jobs.lake import Lake, TableMismatchError
from tarn_jobs.pipeline import Pipeline, Step
from tarn_jobs.position import PROPERTY, Position, PositionError, newest
from tarn_jobs.schema import ADDED, GOLD, PROPERTIES, REFERENCE, SILVER
from tests.spark import flights
from tests.support import bronze, oracle

OTHER_SEEDS = pytest.mark.nightly("a fault of the pipeline that only another order of the events shows")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=OTHER_SEEDS), pytest.param(3, marks=OTHER_SEEDS)])
def test_one_batch_equals_the_oracle(lake: Lake, seed: int) -> None:
    flights.load_reference(lake)
    log, stream = bronze.Log(), flights.stream(seed=seed)
    rows = flights.fill(lake, log, stream)
    assert rows + log.dead == sum(log.next.values()) == stream.totals.messages
    assert log.dead == stream.totals.broken > 0

    assert Pipeline(lake=lake).cycle() == 5

    assert flights.wrong(lake) == []
    assert Pipeline(lake=lake).cycle() == 0, "a lake that is up to date is left alone"


@pytest.mark.in_turn(3, "a piece that ends within a commit of bronze changes the result")
def test_many_small_batches_equal_the_oracle(lake: Lake) -> None:
    flights.load_reference(lake)
    log, steps = bronze.Log(), list[Step]()
    pipeline = Pipeline(lake=lake, offsets_max=1_300, remade_share=2, on_step=steps.append)  # MERGE only
    for part in flights.messages(flights.stream(seed=4), parts=3):
        bronze.append(lake, log, part)
        pipeline.cycle()

    assert flights.wrong(lake) == []
    silver = [s for s in steps if s.table == "silver.flights"]
    assert len(silver) > 5, "pieces are cut by offsets_max, not by bronze's commits"
    assert max(s.offsets for s in silver) <= 1_300
    assert sum(s.offsets for s in silver) == sum(log.next.values()), "every offset is read once"


@pytest.mark.in_turn(2, "messages sent twice change silver or gold")
def test_the_whole_stream_a_second_time_changes_nothing(lake: Lake) -> None:
    flights.load_reference(lake)
    log, stream = bronze.Log(), flights.stream()
    rows = flights.fill(lake, log, stream)
    Pipeline(lake=lake).cycle()
    before = flights.contents(lake)

    flights.fill(lake, log, stream)
    assert Pipeline(lake=lake).cycle() == 5, "the position goes on, or the range would be read for ever"

    assert lake.table("bronze.flight_events").count() == 2 * rows
    assert flights.contents(lake) == before
    assert Pipeline(lake=lake).cycle() == 0


class CrashError(Exception):
    """Simulates a process that ends between two steps."""


POINTS = [
    *("before silver", "after silver"),
    *(f"{when} gold.{name}" for name in oracle.GOLD_KEYS for when in ("before", "after")),
]


def _crashing(at: str) -> Callable[[str], None]:
    def reached(point: str) -> None:
        if point == at:
            raise CrashError(point)

    return reached


@pytest.mark.timeout(600)
def test_a_crash_between_any_two_steps_repeats_and_loses_nothing(lake: Lake) -> None:
    flights.load_reference(lake)
    log = bronze.Log()
    for part in flights.messages(flights.stream(seed=5), parts=2):
        bronze.append(lake, log, part)
        for point in POINTS:
            with pytest.raises(CrashError, match=point):
                Pipeline(lake=lake, reached=_crashing(point)).cycle()

    assert Pipeline(lake=lake).cycle() == 0, "the last crash came after the last commit"
    assert flights.wrong(lake) == []
    for table in ("silver.flights", *(f"gold.{name}" for name in oracle.GOLD_KEYS)):
        positions = [s.value for s in lake.snapshots(table, PROPERTY)]
        assert len(positions) == len(set(positions)) == 2, f"{table}: one commit for each part of the stream"


@pytest.mark.in_turn(3, "two pipelines double rows")
def test_two_pipelines_at_once_do_no_harm(lake: Lake) -> None:
    flights.load_reference(lake)
    log, stream = bronze.Log(), flights.stream(seed=6)
    flights.fill(lake, log, stream, parts=2)
    other = Pipeline(lake=lake, offsets_max=2_000)
    late = iter([True])

    def meanwhile(point: str) -> None:
        if point == "before silver" and next(late, False):
            other.cycle()

    Pipeline(lake=lake, offsets_max=5_000, reached=meanwhile).cycle()
    while Pipeline(lake=lake).cycle():
        pass
    assert flights.wrong(lake) == []


@pytest.mark.in_turn(2, "two pipelines add a change to gold twice")
@pytest.mark.parametrize("table", [GOLD[0].table.name, GOLD[-1].table.name])
def test_of_two_pipelines_one_adds_a_change_to_gold(lake: Lake, table: str) -> None:
    flights.load_reference(lake)
    log = bronze.Log()
    first, second = flights.messages(flights.stream(seed=13), parts=2)
    bronze.append(lake, log, first)
    Pipeline(lake=lake).cycle()
    bronze.append(lake, log, second)

    def meanwhile(point: str) -> None:
        if point == f"before {table}":
            Pipeline(lake=lake, remade_share=2).cycle()

    with pytest.raises(PySparkException, match="conflicting files"):
        Pipeline(lake=lake, remade_share=2, reached=meanwhile).cycle()
    assert Pipeline(lake=lake).cycle() == 0, "the other one did all of it"
    assert flights.wrong(lake) == []


class Watched(Lake):
    """A lake that notes how silver is read."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.spark, lake.catalog)
        object.__setattr__(self, "reads", [])

    reads: list[str]

    def at(self, table: str, snapshot_id: int) -> DataFrame:
        if table == SILVER.name:
            self.reads.append("all")
        return super().at(table, snapshot_id)

    def changes(self, table: str, *, after: int, until: int) -> DataFrame:
        self.reads.append("changes")
        return super().changes(table, after=after, until=until)


def _appended(lake: Lake, seed: int, change: Callable[[], None]) -> tuple[list[str], dict[str, list[str]]]:
    """Two thirds of a stream, a change, the rest: how silver was read for gold of the rest, and its rows."""
    flights.load_reference(lake)
    log, watched = bronze.Log(), Watched(lake)
    parts = list(flights.messages(flights.stream(seed=seed), parts=3))
    for part in parts[:2]:
        bronze.append(lake, log, part)
    Pipeline(lake=lake).cycle()
    change()
    bronze.append(lake, log, parts[2])
    Pipeline(lake=watched).cycle()
    return watched.reads, flights.contents(lake)


def test_gold_is_made_of_what_changed_in_silver(lake: Lake) -> None:
    reads, found = _appended(lake, 14, lambda: None)
    assert reads == ["changes"], "once for all tables, and not all of silver"
    assert flights.wrong(lake) == []
    for name in oracle.GOLD_KEYS:
        lake.spark.sql(f"DROP TABLE {lake.name(f'gold.{name}')}")
    Pipeline(lake=lake).cycle()
    assert flights.contents(lake) == found, "to the last digit what is made of all of silver"


@pytest.mark.in_turn(4, "gold tables of an earlier version stop the pipeline or stay wrong")
@pytest.mark.parametrize("position", ["of an earlier version", "of this one"])
def test_gold_without_its_sums_is_made_of_all_of_silver(lake: Lake, position: str) -> None:
    def change() -> None:
        for gold in GOLD:
            name = gold.table.name
            if position == "of an earlier version":
                _, text = newest(lake.snapshots(name, PROPERTY))
                assert text is not None
                lake.mark(name, {PROPERTY: replace(Position.from_json(text), made_from=None).to_json()})
            dropped = ", ".join(c.name for c in ADDED)
            lake.spark.sql(f"ALTER TABLE {lake.name(name)} DROP COLUMNS ({dropped})")

    reads, _ = _appended(lake, 15, change)
    assert reads == ["all"]
    assert flights.wrong(lake) == []


@pytest.mark.in_turn(3, "deletes by Trino or merge-on-read stop the pipeline")
def test_gold_follows_rows_that_were_deleted_from_silver(lake: Lake) -> None:
    name = lake.name(SILVER.name)

    def change() -> None:
        lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
        lake.spark.sql(f"DELETE FROM {name} WHERE carrier = 'UA' AND origin = 'EWR'")
        (files,) = lake.spark.sql(f"SELECT count(*) AS n FROM {name}.delete_files").collect()
        assert files.n > 0

    reads, _ = _appended(lake, 16, change)
    assert reads == ["all"], "Iceberg reads no changes over delete files"
    (counted,) = lake.spark.sql(f"SELECT count(*) AS n FROM {name} WHERE scheduled_at IS NOT NULL").collect()
    (summed,) = lake.spark.sql(f"SELECT sum(flights) AS n FROM {lake.name(GOLD[0].table.name)}").collect()
    assert summed.n == counted.n


@pytest.mark.in_turn(2, "a gold table that somebody changed by hand stays wrong")
@pytest.mark.parametrize("comes", ["messages", "nothing"])
def test_gold_that_somebody_changed_is_made_of_all_of_silver(lake: Lake, comes: str) -> None:
    flights.load_reference(lake)
    log, watched = bronze.Log(), Watched(lake)
    parts = list(flights.messages(flights.stream(seed=21), parts=3))
    for part in parts[:2] if comes == "messages" else parts:
        bronze.append(lake, log, part)
    Pipeline(lake=lake).cycle()
    emptied, changed, compacted, _ = (gold.table.name for gold in GOLD)
    lake.spark.sql(f"DELETE FROM {lake.name(emptied)}")
    lake.spark.sql(f"UPDATE {lake.name(changed)} SET flights = flights + 1 WHERE origin = 'EWR'")
    _compact(lake, changed)
    _compact(lake, compacted)
    steps = list[Step]()
    if comes == "messages":
        bronze.append(lake, log, parts[2])
    Pipeline(lake=watched, on_step=steps.append).cycle()
    assert flights.wrong(lake) == []
    if comes == "messages":
        assert sorted(watched.reads) == ["all", "changes"], "the others are brought up by what changed"
    else:
        assert [s.table for s in steps] == [emptied, changed], "the others are left alone"
    assert Pipeline(lake=lake).cycle() == 0


@pytest.mark.in_turn(6, "an expired history of silver stops the pipeline")
def test_gold_whose_snapshot_of_silver_is_gone_is_made_of_all(lake: Lake) -> None:
    def change() -> None:
        name = lake.name(SILVER.name)
        _, text = newest(lake.snapshots(SILVER.name, PROPERTY))
        assert text is not None
        lake.mark(SILVER.name, {PROPERTY: text})
        lake.spark.sql(
            f"CALL {lake.catalog}.system.expire_snapshots(table => '{name}', retain_last => 1, "
            "older_than => current_timestamp())"
        )

    reads, _ = _appended(lake, 17, change)
    assert reads == ["all"]
    assert flights.wrong(lake) == []


@pytest.mark.in_turn(2, "gold is made from half of what bronze holds, or lacks some of it")
def test_gold_waits_for_what_doubles_bronze_meanwhile(lake: Lake) -> None:
    flights.load_reference(lake)
    log, steps = bronze.Log(), list[Step]()
    first, *others = flights.messages(flights.stream(seed=12), parts=3)
    bronze.append(lake, log, first)

    def meanwhile(point: str) -> None:
        if point == "after silver" and others:
            bronze.append(lake, log, others.pop(0))

    Pipeline(lake=lake, on_step=steps.append, reached=meanwhile).cycle()
    made = [s.table for s in steps]
    assert made[:2] == ["silver.flights"] * 2
    assert made.count("gold.delays_by_route") == 1, "what is made of a part is thrown away"
    while Pipeline(lake=lake).cycle():
        pass
    assert flights.wrong(lake) == []


@pytest.mark.in_turn(6, "compaction by Spark makes the pipeline start again")
def test_snapshots_of_maintenance_do_not_hide_the_position(lake: Lake) -> None:
    flights.load_reference(lake)
    log = bronze.Log()
    first, second = flights.messages(flights.stream(seed=7), parts=2)
    bronze.append(lake, log, first)
    Pipeline(lake=lake).cycle()
    bronze.append(lake, log, second)
    for table in ("bronze.flight_events", "silver.flights", "gold.delays_by_route"):
        _compact(lake, table)
    _, text = newest(lake.snapshots("silver.flights", PROPERTY))
    assert text is not None

    steps = list[Step]()
    Pipeline(lake=lake, on_step=steps.append).cycle()

    assert flights.wrong(lake) == []
    assert steps[0].offsets == len(second), "only what was new was read"


@pytest.mark.in_turn(5, "offsets of dead letters are read forever")
def test_dead_letters_alone_move_the_position(lake: Lake) -> None:
    flights.load_reference(lake)
    log, stream = bronze.Log(), flights.stream()
    flights.fill(lake, log, stream)
    Pipeline(lake=lake).cycle()
    before = flights.contents(lake)
    broken = [m for part in flights.messages(stream) for m in part if b"event_id" not in m.value]
    assert bronze.append(lake, log, broken) == 0

    assert Pipeline(lake=lake).cycle() == 5
    assert flights.contents(lake) == before
    assert Pipeline(lake=lake).cycle() == 0


@pytest.mark.in_turn(2, "an unknown event stops the pipeline")
def test_an_unknown_event_in_bronze_is_counted_and_passed_over(lake: Lake) -> None:
    """Ingest's spec rejects it; a row from before that, or written by hand, does no harm either."""
    flights.load_reference(lake)
    log, steps = bronze.Log(kinds=None), list[Step]()
    good = next(flights.messages(flights.stream(NoiseRates())))
    changed = (m._replace(value=m.value.replace(b'"departed"', b'"teleported"')) for m in good[:400])
    strange = [m for m in changed if b"teleported" in m.value]
    pipeline = Pipeline(lake=lake, on_step=steps.append)

    alone = bronze.append(lake, log, strange)
    pipeline.cycle()
    among = bronze.append(lake, log, strange)
    read = bronze.append(lake, log, good)
    pipeline.cycle()

    silver = [(s.events, s.ignored) for s in steps if s.table == "silver.flights"]
    assert alone == among > 0
    assert silver == [(alone, alone), (among + read, among)]
    assert flights.wrong(lake) == []


@pytest.mark.in_turn(2, "rows of other sources change silver, but only if silver is made again")
def test_rows_of_other_sources_in_bronze_do_not_count(lake: Lake) -> None:
    """Rows over HTTP, or of another topic, have partitions and offsets of their own, which begin at 0 too."""
    flights.load_reference(lake)
    log, steps = bronze.Log(), list[Step]()
    parts = list(flights.messages(flights.stream(seed=22), parts=2))
    bronze.append(lake, log, parts[0])
    name = lake.name(bronze.TABLE)
    rows = lake.table(bronze.TABLE).withColumn("dep_delay", fn.col("dep_delay") + 1)
    trace = fn.col("_tarn").withField("source", fn.lit("gateway"))
    rows.withColumn("_tarn", trace).writeTo(name).append()
    bronze.append(lake, log, parts[1])
    Pipeline(lake=lake, on_step=steps.append).cycle()
    assert flights.wrong(lake) == []
    (silver,) = [s for s in steps if s.table == SILVER.name]
    assert silver.events == sum(log.next.values()) - log.dead


@pytest.mark.in_turn(2, "events that come before their flight's schedule are lost")
def test_a_flight_counts_from_its_schedule_on(lake: Lake) -> None:
    flights.load_reference(lake)
    log = bronze.Log()
    everything = next(flights.messages(flights.stream()))
    late = [m for m in everything if b'"event":"scheduled"' in m.value]
    early = [m for m in everything if b'"event":"scheduled"' not in m.value]
    bronze.append(lake, log, early)
    Pipeline(lake=lake).cycle()
    assert lake.table("silver.flights").count() > 0
    assert lake.table("gold.delays_by_carrier").count() == 0, "no group is known yet"

    bronze.append(lake, log, late)
    Pipeline(lake=lake).cycle()
    assert flights.wrong(lake) == []


def test_tables_bound_their_history_and_older_ones_are_told_to(lake: Lake) -> None:
    lake.ensure_namespaces(("silver",))
    lake.ensure_table(SILVER)
    assert _properties(lake, SILVER.name).items() >= PROPERTIES.items() - {("format-version", "2")}

    name = lake.name(SILVER.name)
    lake.spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('write.metadata.previous-versions-max')")
    lake.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('tarn.snapshots-kept' = '7')")
    lake.ensure_table(SILVER)
    found = _properties(lake, SILVER.name)
    assert found["write.metadata.previous-versions-max"] == PROPERTIES["write.metadata.previous-versions-max"]
    assert found["tarn.snapshots-kept"] == "7", "what a person set stays"


def _properties(lake: Lake, table: str) -> dict[str, str]:
    rows = lake.spark.sql(f"SHOW TBLPROPERTIES {lake.name(table)}").collect()
    return {row.key: row.value for row in rows}


@pytest.mark.in_turn(4, "a dropped silver or gold table stays empty")
def test_dropped_tables_are_recreated(lake: Lake) -> None:
    flights.load_reference(lake)
    log = bronze.Log()
    flights.fill(lake, log, flights.stream())
    Pipeline(lake=lake).cycle()
    lake.spark.sql(f"DROP TABLE {lake.name('gold.delays_by_hour')}")
    lake.spark.sql(f"DROP TABLE {lake.name('silver.flights')}")

    Pipeline(lake=lake, offsets_max=4_000).cycle()

    assert flights.wrong(lake) == []


@pytest.mark.in_turn(2, "gold stays that of a silver that was dropped, while no message comes")
def test_gold_is_of_a_silver_that_was_made_again(lake: Lake) -> None:
    flights.load_reference(lake)
    log, parts = bronze.Log(), list(flights.messages(flights.stream(seed=18), parts=3))
    bronze.append(lake, log, [m for part in parts[:2] for m in part])
    Pipeline(lake=lake).cycle()
    lake.spark.sql(f"DELETE FROM {lake.name(SILVER.name)} WHERE carrier = 'UA'")
    bronze.append(lake, log, parts[2])
    Pipeline(lake=lake).cycle()
    assert flights.wrong(lake) != []

    lake.spark.sql(f"DROP TABLE {lake.name(SILVER.name)}")
    Pipeline(lake=lake).cycle()
    assert flights.wrong(lake) == []
    assert Pipeline(lake=lake).cycle() == 0


@pytest.mark.in_turn(2, "rows that somebody adds to the reference double flights")
def test_a_reference_that_has_everything_twice_doubles_no_flight(lake: Lake) -> None:
    flights.load_reference(lake)
    for table in REFERENCE:
        name = lake.name(table.name)
        lake.spark.sql(f"INSERT INTO {name} SELECT * FROM {name}")
    airlines = lake.name("ref.airlines")
    lake.spark.sql(f"INSERT INTO {airlines} SELECT carrier, NULL FROM {airlines}")
    log = bronze.Log()
    flights.fill(lake, log, flights.stream(seed=20))
    Pipeline(lake=lake).cycle()
    assert flights.wrong(lake) == []


@pytest.mark.in_turn(2, "a column that somebody added to silver or gold stops the pipeline")
def test_a_column_that_somebody_added_is_null_in_new_rows(lake: Lake) -> None:
    flights.load_reference(lake)
    log, parts = bronze.Log(), list(flights.messages(flights.stream(seed=19), parts=2))
    bronze.append(lake, log, parts[0])
    Pipeline(lake=lake).cycle()
    added = [SILVER.name, *(gold.table.name for gold in GOLD)]
    for table in added:
        lake.spark.sql(f"ALTER TABLE {lake.name(table)} ADD COLUMN note string")
    bronze.append(lake, log, parts[1])
    Pipeline(lake=lake).cycle()
    assert flights.wrong(lake) == []
    assert [lake.table(table).where("note IS NOT NULL").count() for table in added] == [0] * len(added)
    assert Pipeline(lake=lake).cycle() == 0


@pytest.mark.in_turn(4, "the pipeline goes on with offsets of another table")
def test_another_bronze_stops_the_pipeline(lake: Lake) -> None:
    flights.load_reference(lake)
    log, stream = bronze.Log(), flights.stream()
    flights.fill(lake, log, stream)
    Pipeline(lake=lake).cycle()
    before = flights.contents(lake)
    lake.spark.sql(f"DROP TABLE {lake.name('bronze.flight_events')}")
    fresh = bronze.Log(source={**bronze.SOURCE, "topic-id": "another"})
    flights.fill(lake, fresh, stream)

    with pytest.raises(
        PositionError, match=r"topic-id was 'test-topic-id', is 'another'.*[Dd]rop the silver"
    ):
        Pipeline(lake=lake).cycle()
    assert flights.contents(lake) == before


@pytest.mark.in_turn(3, "foreign commits and an expiry hide the offset map from the pipeline")
def test_foreign_commits_and_an_expiry_hide_no_offsets(lake: Lake) -> None:
    """The history of bronze is cut before ingest's last commit; its tag still leads to it."""
    flights.load_reference(lake)
    log = bronze.Log()
    flights.fill(lake, log, flights.stream(seed=9), parts=2)
    name = lake.name(bronze.TABLE)
    tag = f"tarn-offsets-{bronze.STREAM}"
    lake.spark.sql(f"ALTER TABLE {name} CREATE TAG `{tag}`")
    for _ in range(2):
        _compact(lake, bronze.TABLE)
    lake.spark.sql(
        f"CALL {lake.catalog}.system.expire_snapshots(table => '{name}', retain_last => 1, "
        "older_than => current_timestamp())"
    )
    entry = f"tarn.offsets.{bronze.STREAM}"
    left = lake.snapshots(bronze.TABLE, entry, tag=tag)
    assert [(s.tagged, s.current, s.value is not None) for s in sorted(left, key=lambda s: s.at_us)] == [
        (True, False, True),
        (False, True, False),
    ]
    with pytest.raises(PositionError, match="gone from the history"):
        newest(lake.snapshots(bronze.TABLE, entry))

    assert Pipeline(lake=lake).cycle() > 0
    assert flights.wrong(lake) == []


@pytest.mark.in_turn(5, "rows after a rollback are passed over")
def test_a_bronze_that_went_back_stops_the_pipeline(lake: Lake) -> None:
    flights.load_reference(lake)
    log = bronze.Log()
    flights.fill(lake, log, flights.stream(), parts=2)
    Pipeline(lake=lake).cycle()
    name = lake.name("bronze.flight_events")
    first = lake.spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").first()
    assert first is not None
    lake.spark.sql(f"CALL {lake.catalog}.system.rollback_to_snapshot('{name}', {first.snapshot_id})")

    with pytest.raises(
        PositionError, match=r"bronze went back: partition \d ends at \d+, silver has read up"
    ):
        Pipeline(lake=lake).cycle()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP COLUMN dep_delay", "dep_delay is missing, needed is int"),
        ("RENAME COLUMN carrier TO airline", "carrier is missing, needed is string"),
        ("ALTER COLUMN flight TYPE bigint", "flight is bigint, needed is int"),
    ],
)
def test_a_bronze_with_other_columns_is_told(lake: Lake, change: str, told: str) -> None:
    flights.load_reference(lake)
    bronze.append(lake, bronze.Log(), next(flights.messages(flights.stream(), parts=20)))
    lake.spark.sql(f"ALTER TABLE {lake.name('bronze.flight_events')} {change}")

    with pytest.raises(TableMismatchError, match=f"bronze.flight_events is not as .*{told}"):
        Pipeline(lake=lake).cycle()


@pytest.mark.in_turn(2, "the pipeline fills renamed columns with nulls")
def test_columns_renamed_anywhere_stop_the_pipeline_until_they_are_back(lake: Lake) -> None:
    """A new session checks all tables; the running one fails and is replaced by a new one."""
    flights.load_reference(lake)
    log, parts = bronze.Log(), list(flights.messages(flights.stream(), parts=2))
    bronze.append(lake, log, parts[0])
    Pipeline(lake=lake).cycle()
    bronze.append(lake, log, parts[1])
    changes = (
        ("bronze.flight_events", "dep_delay", "int"),
        ("silver.flights", "airline", "string"),
        ("gold.delays_by_hour", "mean_dep_delay", "double"),
    )
    before = flights.contents(lake)
    for table, column, kind in changes:
        rename = f"ALTER TABLE {lake.name(table)} RENAME COLUMN"
        lake.spark.sql(f"{rename} {column} TO other")
        told = (
            rf"{table} is not as the pipeline needs it: {column} is missing, needed is {kind}; change it back"
        )
        with pytest.raises(TableMismatchError, match=told):
            Pipeline(lake=lake).cycle()
        lake.spark.sql(f"{rename} other TO {column}")
    assert flights.contents(lake) == before, "nothing was half done"

    Pipeline(lake=lake).cycle()
    assert flights.wrong(lake) == []


def test_without_bronze_there_is_nothing_to_do(lake: Lake) -> None:
    assert Pipeline(lake=lake).head() is None
    assert Pipeline(lake=lake).cycle() == 0


def test_the_head_is_the_current_snapshot_of_bronze(lake: Lake) -> None:
    pipeline = Pipeline(lake=lake)
    name = lake.name("bronze.flight_events")
    lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {lake.name('bronze')}")
    lake.spark.sql(f"CREATE TABLE {name} (id BIGINT) USING iceberg")
    assert pipeline.head() is None, "a table without a snapshot"
    heads = []
    for number in (1, 2):
        lake.spark.sql(f"INSERT INTO {name} VALUES ({number})")
        (current,) = lake.spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").collect()
        assert pipeline.head() == str(current.snapshot_id)
        heads.append(pipeline.head())
    assert len(set(heads)) == 2


def _compact(lake: Lake, table: str) -> None:
    """Commit of a maintenance job: other files, the same rows, and no property of Tarn in its summary."""
    name = lake.name(table)
    call = f"{lake.catalog}.system.rewrite_data_files"
    done = lake.spark.sql(f"CALL {call}(table => '{name}', options => map('rewrite-all', 'true'))").collect()
    assert done[0].rewritten_data_files_count > 0
