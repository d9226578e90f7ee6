"""Events about complete partitions of a table that somebody partitions otherwise meanwhile: none is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tarn.core.completion import PREFIX, Announced, OpenPartitions, TimeField, followed, time_field
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn.ingest.batch_commit import open_in, opened_by
from tests.contract.ingest.test_completion import HOUR, World, announcing

NUMBER = int(HOUR.timestamp()) // 3_600
DAY = NUMBER // 24
COLUMNS = {"id": 1, "at": 2, "sent": 3}
Field = tuple[str, str, str]
"""Name of a partition field, its transform, and its column."""


def partition(world: World, *fields: Field) -> None:
    """Partition the table by these fields from now on, as another client does."""
    ids = {f["name"]: f["id"] for f in world.lake.table().metadata["schemas"][-1]["fields"]}
    made = [{"name": n, "transform": unit, "source-id": ids[column]} for n, unit, column in fields]
    updates = [
        {"action": "add-spec", "spec": {"fields": made}},
        {"action": "set-default-spec", "spec-id": -1},
    ]
    world.lake.local.catalog.tables.commit(world.lake.local._slot(world.ingestor.table), [], updates)


def at(world: World, minutes: float) -> None:
    """Set the clock to so many minutes after the hour."""
    world.lake.clock.now_s = (HOUR + timedelta(minutes=minutes)).timestamp() - 1_700_000_000


def values(world: World) -> list[str]:
    return [event["partition"]["value"] for event in world.events()]


@pytest.mark.parametrize("name", ["at_hour", "at_day"])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_hours_of_an_open_day_are_announced_once_the_table_is_partitioned_by_hours(
    name: str, restarts: bool
) -> None:
    """The rows of the morning are in a file of the whole day; a name may be used again."""
    world = World(announcing(partitioning="['day(at)']"))
    world.send(-120, 10)
    world.work()
    partition(world, (name, "hour", "at"))
    if restarts:
        world.restart()
    world.work()
    at(world, 65)
    world.send(61)
    world.work()
    assert values(world) == [f"2023-11-14-{hour:02}" for hour in range(23)], (
        "each of the day's hours may have rows"
    )
    assert world.lake.table().metadata["default-spec-id"] == 1
    world.send(62)
    world.work()
    assert open_in(world.lake.table(), "orders") == OpenPartitions(
        field=name, runs=((NUMBER + 1, NUMBER + 2),)
    )
    world.restart()
    world.work()
    assert len(values(world)) == 23, "recorded, so not sent again"


def test_files_of_a_day_that_are_committed_just_after_the_change_are_on_the_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The catalog takes them: the table has no new snapshot."""
    world = World(announcing(partitioning="['day(at)']"))
    world.send(5)
    world.work()
    commit = world.lake.local.commit

    def late(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        monkeypatch.setattr(world.lake.local, "commit", commit)
        partition(world, ("at_hour", "hour", "at"))
        return commit(table, request, key=key)

    monkeypatch.setattr(world.lake.local, "commit", late)
    world.send(10, -1_500)
    world.work()
    state = world.lake.table()
    assert state.metadata["default-spec-id"] == 1
    opened = open_in(state, "orders")
    assert opened is not None
    assert (opened.field, opened.runs) == ("at_day", ((DAY - 1, DAY + 1),))
    at(world, 65)
    world.send(61)
    world.work()
    assert {"2023-11-13-21", "2023-11-14-22"} <= set(values(world))


def test_the_day_of_an_open_hour_is_announced_once_the_table_is_partitioned_by_days() -> None:
    world = World()
    world.send(10)
    world.work()
    partition(world, ("at_day", "day", "at"))
    at(world, 125)
    world.send(121)
    world.work()
    assert values(world) == ["2023-11-14"]
    assert world.events()[0]["partition"]["field"] == "at_day"


def test_what_is_open_stays_open_while_the_table_has_no_partitions_by_time() -> None:
    """The field is dropped, then another added, and the stream commits in between."""
    world = World()
    world.send(10)
    world.work()
    partition(world)
    world.send(11)
    world.work()
    at(world, 65)
    world.send(61)
    world.work()
    assert world.events() == []
    partition(world, ("at_hour", "hour", "at"))
    world.send(62)
    world.work()
    assert values(world) == ["2023-11-14-22"]


def test_a_stream_that_stopped_states_its_list_by_the_new_field_and_then_no_more() -> None:
    world = World(announcing(partitioning="['day(at)']"))
    world.send(10)
    world.work()
    partition(world, ("at_hour", "hour", "at"))
    at(world, 65)
    world.wait(40)
    assert values(world)[-1] == "2023-11-14-22"
    world.wait(100)
    world.wait(100)
    opened, commits = open_in(world.lake.table(), "orders"), world.lake.local.commits
    assert opened == OpenPartitions(field="at_hour", runs=((NUMBER + 1, NUMBER + 2),))
    world.wait(100)
    assert world.lake.local.commits == commits


def test_a_rollback_that_keeps_the_offsets_opens_what_a_version_of_other_partitions_had_open() -> None:
    world = World()
    world.send(10)
    world.work()
    before = world.lake.table()
    world.send(61)
    world.work()
    world.send(62)
    world.work()
    assert values(world) == ["2023-11-14-22"]
    partition(world, ("at_day", "day", "at"))
    at(world, 130)
    world.send(125)
    world.work()
    world.send(126)
    world.work()
    assert values(world) == ["2023-11-14-22", "2023-11-14"]
    assert open_in(world.lake.table(), "orders") == OpenPartitions(field="at_day", runs=((DAY + 1, DAY + 2),))
    world.roll_back(before, end=5)
    assert open_in(world.lake.table(), "orders") == OpenPartitions(field="at_day", runs=((DAY, DAY + 2),))


def state(*specs: Sequence[Field], stated: Mapping[str, Any] | None = None) -> TableState:
    """A table with these partition specs, of which the last is current, and a list of the stream `s`."""
    columns = [{"name": name, "id": number, "type": "timestamptz"} for name, number in COLUMNS.items()]
    summary = {"tarn.offsets.s": "{}"}
    if stated is not None:
        summary[PREFIX + "s"] = json.dumps({"v": 1, **stated})
    return TableState(
        {
            "table-uuid": "u",
            "schemas": [{"schema-id": 0, "fields": columns}],
            "current-schema-id": 0,
            "partition-specs": [
                {
                    "spec-id": number,
                    "fields": [
                        {"name": name, "transform": transform, "source-id": COLUMNS[column]}
                        for name, transform, column in fields
                    ],
                }
                for number, fields in enumerate(specs)
            ],
            "default-spec-id": len(specs) - 1,
            "last-sequence-number": 9,
            "current-snapshot-id": 7,
            "snapshots": [{"snapshot-id": 7, "sequence-number": 9, "timestamp-ms": 1, "summary": summary}],
        }
    )


HOURS: Field = ("at_hour", "hour", "at")
DAYS: Field = ("at_day", "day", "at")
DAY_RUN = {"field": "at_day", "runs": [[20_000, 20_002]], "late": [[20_001, 20_002, 5]]}
AS_HOURS = ((480_000, 480_048),)
UNKNOWN = ()


@pytest.mark.parametrize(
    ("specs", "stated", "runs"),
    [
        ([[DAYS], [HOURS]], DAY_RUN, AS_HOURS),
        ([[DAYS], [HOURS]], {**DAY_RUN, "unit": "day"}, AS_HOURS),
        ([[DAYS], [DAYS, HOURS]], DAY_RUN, AS_HOURS),
        ([[DAYS], [("the_day", "day", "at")]], DAY_RUN, ((20_000, 20_002),)),
        ([[DAYS], [("at_day", "hour", "at")]], {**DAY_RUN, "unit": "day"}, AS_HOURS),
        ([[HOURS]], {**DAY_RUN, "unit": "day"}, AS_HOURS),
        ([[DAYS]], DAY_RUN, ((20_000, 20_002),)),
        ([[("sent_day", "day", "sent")], [HOURS]], {**DAY_RUN, "field": "sent_day", "unit": "day"}, UNKNOWN),
        ([[("at_day", "bucket[4]", "id")], [HOURS]], DAY_RUN, UNKNOWN),
        ([[HOURS]], DAY_RUN, UNKNOWN),
    ],
    ids=[
        "of a former version",
        "with its unit",
        "a finer field is added",
        "renamed",
        "a name of another unit",
        "the former spec was removed",
        "unchanged",
        "of another column",
        "no field of time",
        "of a former version, and the spec was removed",
    ],
)
def test_a_list_is_read_by_the_present_field_of_the_table(
    specs: Sequence[Sequence[Field]], stated: Mapping[str, Any], runs: tuple[tuple[int, int], ...]
) -> None:
    found = state(*specs, stated=stated)
    opened = opened_by(found, "s", (), column="at", announced=Announced())
    assert opened is not None
    assert opened.runs == runs
    last = specs[-1][-1]
    assert (opened.field, opened.unit) == last[:2]
    assert json.loads(opened.to_json())["unit"] == last[1]


def test_the_list_is_stated_as_it_is_where_the_table_has_no_partitions_by_time() -> None:
    for stated in (DAY_RUN, {**DAY_RUN, "unit": "day"}):
        found = state([DAYS], [], stated=stated)
        assert opened_by(found, "s", (), column="at", announced=Announced()) == open_in(found, "s")
    assert opened_by(state([]), "s", (), column="at", announced=Announced()) is None


@pytest.mark.parametrize(
    ("before", "runs", "unit", "found"),
    [
        ("hour", ((47, 49),), "day", ((1, 3),)),
        ("hour", ((-1, 0),), "day", ((-1, 0),)),
        ("hour", ((0, 1), (5, 6)), "day", ((0, 1),)),
        ("day", ((-1, 1),), "hour", ((-24, 24),)),
        ("day", ((31, 32),), "month", ((1, 2),)),
        ("day", ((364, 366),), "year", ((0, 2),)),
        ("month", ((1, 2),), "day", ((31, 59),)),
        ("year", ((2, 3),), "month", ((24, 36),)),
        ("year", ((0, 1),), "hour", ((0, 8_760),)),
        ("year", ((8_029, 9_000),), "month", ((96_348, 96_360),)),
        ("year", ((8_030, 9_000),), "month", ()),
        ("hour", ((0, 10**12),), "year", ((0, 8_030),)),
        ("hour", ((-(10**12), 1),), "year", ((-1_969, 1),)),
        ("hour", ((-(10**12), 1 - 10**12),), "hour", ((-(10**12), 1 - 10**12),)),
    ],
)
def test_a_partition_is_open_if_it_shares_time_with_one_that_was(
    before: str, runs: tuple[tuple[int, int], ...], unit: str, found: tuple[tuple[int, int], ...]
) -> None:
    """Times outside the years 1 to 9999 have no event, so they need no place in another unit."""
    opened = OpenPartitions(
        field="x", unit=before, runs=runs, late=tuple((start, end, 7) for start, end in runs)
    )
    made = followed(opened, state([(f"at_{unit}", unit, "at")]), by(unit))
    assert (made.field, made.unit, made.runs) == (f"at_{unit}", unit, found)
    assert made.late == tuple((start, end, 7) for start, end in found)


def by(unit: str) -> TimeField:
    found = time_field(state([(f"at_{unit}", unit, "at")]), "at")
    assert found is not None
    return found


def test_an_event_of_another_unit_takes_nothing_off_the_list() -> None:
    """Month 682 is in 2026, day 682 in 1971: a commit that is under way may know of the one only."""
    found = state([("at_month", "month", "at")], [DAYS], stated={"field": "at_day", "runs": [[682, 683]]})
    announced = Announced(at=7, unit="month", numbers={682: 9})
    opened = opened_by(found, "s", (), column="at", announced=announced)
    assert opened is not None
    assert opened.runs == ((682, 683),)
    opened = opened_by(found, "s", (), column="at", announced=replace(announced, unit="day"))
    assert opened is not None
    assert opened.runs == ()
