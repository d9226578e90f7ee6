"""The look at the lake: what it sees, what it keeps when nobody answers, and how little it asks for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.catalog_tables import CatalogTables
from tarn.core.credentials import ACCESS_KEY_FILE, CREDENTIAL_FILE, SECRET_KEY_FILE
from tarn.core.errors import CorruptStateError, ForbiddenError, NoSuchTableError, UnavailableError
from tarn.core.reap import MEASURED_KEY
from tarn.ingest.context import StoppedError
from tarn.ingest.figures import figures_of
from tarn.ingest.lake_look import PAUSE_S, REST_S_MAX, SHARE, LakeLook
from tarn.ingest.settings import Settings
from tarn.ingest.wiring import make_lake_look
from tarn.testing.memory_topic import Topic
from tests.support.gateway import a_world
from tests.support.lake import TABLE, Lake, order
from tests.support.status_api import LakeTables, look_of, now_of

LETTERS = "ops.dead_letters"


@pytest.fixture
def lake() -> Lake:
    topic = Topic("orders", 1)
    made = Lake(topic)
    topic.send(0, order(1), b"junk")
    made.work(made.ingestor(), turns=40)
    return made


def test_it_sees_every_table_with_its_manifests(lake: Lake) -> None:
    look = look_of(lake, LakeTables(lake, TABLE, LETTERS))
    assert (look.seen().tables, look.seen().looked_ms) == ({}, None)
    look.look()
    seen = look.seen()
    assert {name: one.figures.rows for name, one in seen.tables.items()} == {TABLE: 1, LETTERS: 1}
    committed = lake.registry.get("orders").figures
    assert seen.tables[TABLE].figures == committed, "the same version looks the same to its committer"
    assert seen.tables[LETTERS].figures.manifests == 1
    assert (seen.looked_ms, seen.fault) == (now_of(lake)(), "")


def test_it_sees_the_tables_of_the_catalog_over_http(tmp_path: Path) -> None:
    with a_world(tmp_path) as world:
        world.lake.sources.topics["orders"].send(0, order(1))
        world.lake.work(world.lake.ingestor(), turns=40)
        rest = RestCatalog(world.catalog_url, warehouse="tarn", credential=lambda: world.credentials["admin"])
        tables: Any = CatalogTables(rest)
        look = look_of(world.lake, tables)
        look.look()
        assert look.seen().fault == ""
        assert look.seen().tables[TABLE].figures.rows == 1
        assert look.seen().tables[TABLE].figures.manifests == 1


@pytest.mark.parametrize("level", ["a+b", "a b", "a%b", "ä", "a&b=c#d"])
def test_it_sees_tables_in_namespaces_of_odd_names(tmp_path: Path, level: str) -> None:
    schema = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
    with a_world(tmp_path) as world:
        for levels in ([level], [level, "in"]):
            world.admin("POST", "/v1/namespaces", {"namespace": levels})
        inner = quote("\x1f".join((level, "in")), safe="")
        world.admin("POST", f"/v1/namespaces/{inner}/tables", {"name": "t", "schema": schema})
        rest = RestCatalog(world.catalog_url, warehouse="tarn", credential=lambda: world.credentials["admin"])
        assert rest.namespaces((level,)) == [(level, "in")]
        look = look_of(world.lake, CatalogTables(rest))  # type: ignore[arg-type]
        look.look()
        assert f"{level}.in.t" in look.seen().tables


def test_wired_for_production_it_sees_the_tables_and_says_that_the_store_is_away(tmp_path: Path) -> None:
    with a_world(tmp_path / "world") as world:
        world.lake.sources.topics["orders"].send(0, order(1))
        world.lake.work(world.lake.ingestor(), turns=40)
        for name, content in {
            CREDENTIAL_FILE: world.credentials["admin"],
            ACCESS_KEY_FILE: "key",
            SECRET_KEY_FILE: "secret",
        }.items():
            (tmp_path / name).write_text(content)
        settings = Settings(
            secrets_dir=tmp_path, catalog_uri=world.catalog_url, s3_endpoint="http://127.0.0.1:1"
        )
        look = make_lake_look(settings, threading.Event())
        look.look()
        seen = look.seen()
        assert (seen.fault, seen.tables[TABLE].figures.rows) == ("", 1)
        assert seen.tables[TABLE].figures.manifests is None, "the store has its list"
        assert (seen.sizes, seen.sizes_ms) == ({}, None)
        assert seen.sizes_fault


def test_without_a_catalog_everything_stays_as_it_was_and_nobody_else_is_asked(lake: Lake) -> None:
    tables = LakeTables(lake, TABLE, LETTERS)
    look = look_of(lake, tables)
    look.look()
    before = look.seen()
    tables.asked.clear()
    lake.clock.now_s += 60
    tables.faults = {TABLE: UnavailableError("the catalog does not respond")}
    look.look()
    assert tables.asked == [TABLE], "the others would not answer either"
    assert look.seen().tables == before.tables
    assert (look.seen().looked_ms, look.seen().fault) == (before.looked_ms, "the catalog does not respond")
    tables.faults = {}
    look.look()
    assert (look.seen().looked_ms, look.seen().fault) == (now_of(lake)(), "")


def test_a_table_that_cannot_be_read_hides_no_other(lake: Lake) -> None:
    tables = LakeTables(lake, "a.broken", TABLE)
    look = look_of(lake, tables)
    for error in (CorruptStateError("snapshot 7 is missing"), KeyError("snapshots"), ForbiddenError("no")):
        tables.faults = {"a.broken": error}
        look.look()
        assert [*look.seen().tables] == [TABLE]
        assert look.seen().fault.startswith("table a.broken: ")
        assert look.seen().looked_ms is None


def test_a_table_that_is_gone_is_not_shown(lake: Lake) -> None:
    tables = LakeTables(lake, TABLE, LETTERS)
    look = look_of(lake, tables)
    look.look()
    tables.faults = {LETTERS: NoSuchTableError("dropped a moment ago")}
    look.look()
    assert ([*look.seen().tables], look.seen().fault) == ([TABLE], "")
    tables.faults, tables.names = {}, [LETTERS]
    look.look()
    assert [*look.seen().tables] == [LETTERS]


def test_a_manifest_list_is_read_once_per_snapshot_and_again_if_it_could_not_be(lake: Lake) -> None:
    lists: list[str] = []
    look = look_of(lake, LakeTables(lake, TABLE), lists=lists)
    for _ in range(3):
        look.look()
    assert len(lists) == 1
    lake.sources.topics["orders"].send(0, order(2))
    lake.work(lake.ingestor(), turns=40)
    look.look()
    assert len(lists) == 2
    fails = [UnavailableError("not in the store (yet)"), CorruptStateError("no manifest list")]

    def listed(location: str) -> Any:
        lists.append(location)
        if fails:
            raise fails.pop()
        return look_listed(location)

    look_listed = look._listed
    again = look_of(lake, LakeTables(lake, TABLE), listed=listed)
    for number in range(3):
        again.look()
        figures = again.seen().tables[TABLE].figures
        assert (figures.rows, figures.manifests is None) == (2, number < 2)
        assert again.seen().fault == "", "what is unknown is shown as such"


def test_it_rests_nine_times_as_long_as_it_took_and_pauses_between_looks(lake: Lake) -> None:
    slept: list[float] = []

    class Slow(LakeTables):
        def state(self, table: str) -> Any:
            lake.clock.now_s += 0.25 if table == TABLE else 10.0
            return super().state(table)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if seconds == PAUSE_S:
            raise StoppedError

    look_of(lake, Slow(lake, TABLE, LETTERS), sleep=sleep).run()
    assert slept[0] == pytest.approx(0.25 * (1 / SHARE - 1))
    assert slept[1:] == [REST_S_MAX, PAUSE_S]


def test_it_looks_at_a_bounded_number_of_tables(lake: Lake) -> None:
    look = look_of(lake, LakeTables(lake, TABLE, LETTERS), tables_max=1)
    look.look()
    assert [*look.seen().tables] == [TABLE]
    assert look.seen().fault == "the lake has 2 tables; only the first 1 by name are shown"


def test_what_the_reaper_measured_stays_if_it_cannot_be_read(lake: Lake) -> None:
    look = look_of(lake, LakeTables(lake, TABLE))
    look.look()
    assert (look.seen().sizes, look.seen().sizes_ms) == ({}, now_of(lake)())
    entry = b'{"name": "a.b", "objects": 1, "bytes": 9, "live": 5, "to-be-removed": 1, "at-ms": 0}'
    lake.store.put(MEASURED_KEY, b'{"format": 1, "tables": {"u": %s}}' % entry)
    look.look()
    measured = look.seen().sizes
    assert measured["a.b"].history == 3
    lake.store.put(MEASURED_KEY, b"{}")
    look.look()
    assert look.seen().sizes == measured
    assert "cannot be read" in look.seen().sizes_fault
    assert look.seen().fault == "", "the tables were seen"


def test_a_defect_ends_no_look_for_good(lake: Lake, logged: list[Any]) -> None:
    tables = LakeTables(lake, TABLE)
    broken = [ZeroDivisionError("division by zero")]
    looks: list[LakeLook] = []

    def now_ms() -> int:
        if broken:
            raise broken.pop()
        return now_of(lake)()

    def sleep(seconds: float) -> None:
        if seconds == PAUSE_S:
            faults.append(looks[0].seen().fault)
            if len(faults) == 2:
                raise StoppedError

    faults: list[str] = []
    looks.append(look_of(lake, tables, now_ms=now_ms, sleep=sleep))
    looks[0].run()
    assert faults == ["ZeroDivisionError: division by zero; a defect of Tarn", ""]
    assert [line["event"] for line in logged if line["log_level"] == "error"] == [
        "the look at the lake broke"
    ]
    logged.clear()


def test_a_table_without_a_snapshot_has_nothing_and_that_is_known(lake: Lake) -> None:
    empty = lake.table()
    empty.metadata.update({"refs": {}, "snapshots": [], "current-snapshot-id": -1})
    found = figures_of(type(empty)(empty.metadata))
    assert (found.rows, found.files, found.bytes, found.manifests, found.snapshots) == (0, 0, 0, 0, 0)
    assert (found.snapshot_id, found.commit_at_ms) == (None, None)
    assert found.metadata_bytes is not None


def test_totals_that_a_writer_leaves_out_are_unknown(lake: Lake) -> None:
    state = lake.table()
    assert state.head is not None
    for name in ("total-records", "total-data-files", "total-files-size", "total-delete-files"):
        del state.head["summary"][name]
    found = figures_of(state)
    assert (found.rows, found.files, found.bytes, found.delete_files) == (None, None, None, None)
    assert (found.manifests, found.metadata_bytes) == (None, None)
