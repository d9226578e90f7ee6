"""Answers that are right and written differently are taken, and wrong ones that look right are not."""

from __future__ import annotations

import ast
import csv
import hashlib
import random
import re
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.types import DoubleType, StringType

from tarn.core.object_store import StoreRefusedError
from tarn.workshop import Verdict, anatomy, scratch
from tarn.workshop.checks import nb00, nb01, nb02, nb03, nb04, nb05, nb06, nb07, nb08, nb09, nb11
from tarn.workshop.lab import Lab
from tests.support.workshop import read, source

AN_HOUR = timedelta(hours=1)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    how = {"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": tmp_path.as_uri()}
    found = load_catalog("lake", **how)
    found.create_namespace("ws_ada")
    return found


def lab_of(catalog: Catalog | None = None, **parts: Any) -> Lab:
    names = {
        "name": lambda table: f"ws_ada.{table}",
        "ingestor": lambda name: f"ws-ada-{name}",
        "topic": lambda name: f"workshop.ada.{name}",
        "student": "ada",
        "namespace": "ws_ada",
        "size": 0.1,
    }
    return cast("Lab", SimpleNamespace(**(names | {"catalog": catalog} | parts)))


def taken(verdict: Verdict) -> None:
    assert verdict.right, (verdict.message, verdict.hint)


def refused(verdict: Verdict, words: str) -> None:
    assert not verdict.right
    assert words in verdict.message, verdict.message


@pytest.fixture
def routes(catalog: Catalog) -> Lab:
    """Two origins, seven destinations; BOS is the farthest by one origin only."""
    catalog.create_namespace("gold")
    rows = {
        "origin": ["JFK"] * 7 + ["EWR"] * 2,
        "dest": ["MIA", "ORD", "BOS", "SFO", "IAD", "DCA", "PHL", "MIA", "BOS"],
        "distance": [1089, 740, 187, 2586, 228, 213, 94, 1085, 2600],
        "flights": [40, 60, 30, 50, 20, 10, 1, 30, 30],
    }
    table = pa.table(
        rows, pa.schema([(n, pa.string() if n in ("origin", "dest") else pa.int64()) for n in rows])
    )
    catalog.create_table("gold.delays_by_route", table.schema).append(table)
    return lab_of(catalog)


@pytest.mark.parametrize("answer", ["BOS", "bos", " BOS "])
def test_a_code_may_be_written_in_small_letters(routes: Lab, answer: str) -> None:
    taken(nb00.exercise_1(routes, answer))


def test_a_near_destination_is_said_to_be_near(routes: Lab) -> None:
    refused(nb00.exercise_1(routes, "SFO"), "2,586 miles away, and some destination is farther")
    refused(nb00.exercise_1(routes, ["BOS"]), "is of type list")


@pytest.mark.parametrize(
    ("dests", "flights", "words"),
    [
        (["MIA", "ORD", "BOS", "SFO", "IAD"], [70, 60, 60, 50, 20], ""),
        (["IAD", "SFO", "BOS", "ORD", "MIA"], [20, 50, 60, 60, 70], ""),
        (["MIA", "ORD", "BOS", "SFO", "PHL"], [70, 60, 60, 50, 1], "PHL is not among the 5 destinations"),
        (["MIA", "MIA", "ORD", "SFO", "BOS"], [40, 30, 60, 50, 60], "more than once"),
        (["MIA", "ORD"], [70, 60], "the table has 2 rows"),
        (["MIA", "ORD", "BOS", "SFO", "IAD"], [40, 60, 30, 50, 20], "MIA has 40 flights in your table"),
        (["MIA", "ORD", "BOS", "SFO", "IAD"], [71, 60, 60, 50, 20], "MIA has 71 flights in your table"),
        (["MIA", "ORD", "BOS", "SFO", "IAD"], [70, None, 60, 50, 20], "ORD has nan flights in your table"),
    ],
)
def test_a_table_of_ones_own_has_the_busiest_in_any_order(
    routes: Lab, dests: list[str], flights: list[int | None], words: str
) -> None:
    made = pa.table({"dest": dests, "flights": pa.array(flights, pa.int64())})
    routes.catalog.create_table("ws_ada.favourites", made.schema).append(made)
    verdict = nb00.exercise_2(routes, "ws_ada.favourites")
    if words:
        refused(verdict, words)
    else:
        taken(verdict)


@pytest.mark.long
def test_flights_are_those_of_the_moment_at_which_the_table_was_made(routes: Lab) -> None:
    """The lake goes on between the statement and the check, and gold keeps a part of its past."""
    gold = routes.catalog.load_table("gold.delays_by_route")
    was = gold.scan().to_arrow()
    made = pa.table({"dest": ["MIA", "ORD", "BOS", "SFO", "IAD"], "flights": [70, 60, 60, 50, 20]})
    routes.catalog.create_table("ws_ada.favourites", made.schema).append(made)
    more = pc.add(was["flights"], pa.scalar(1, pa.int64()))
    now = was.set_column(was.schema.get_field_index("flights"), "flights", more)
    gold.overwrite(now)
    taken(nb00.exercise_2(routes, "ws_ada.favourites"))
    own = routes.catalog.load_table("ws_ada.favourites")
    own.overwrite(made.set_column(1, "flights", pa.array([70, 61, 60, 50, 20], pa.int64())))
    refused(nb00.exercise_2(routes, "ws_ada.favourites"), "flights in your table")


@pytest.mark.long
def test_a_table_that_was_mended_later_has_the_flights_of_its_first_statement(
    routes: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LIMIT was forgotten: the row too many is deleted, after the lake has gone on."""
    monkeypatch.setattr(nb00, "AROUND_MS", 20)
    gold = routes.catalog.load_table("gold.delays_by_route")
    was = gold.scan().to_arrow()
    made = pa.table({"dest": ["MIA", "ORD", "BOS", "SFO", "IAD", "DCA"], "flights": [70, 60, 60, 50, 20, 10]})
    own = routes.catalog.create_table("ws_ada.favourites", made.schema)
    own.append(made)
    time.sleep(0.05)
    more = pc.add(was["flights"], pa.scalar(1, pa.int64()))
    gold.overwrite(was.set_column(was.schema.get_field_index("flights"), "flights", more))
    time.sleep(0.05)
    own.delete("dest = 'DCA'")
    taken(nb00.exercise_2(routes, "ws_ada.favourites"))
    own.overwrite(made.slice(0, 5).set_column(1, "flights", pa.array([70, 61, 60, 50, 20], pa.int64())))
    refused(nb00.exercise_2(routes, "ws_ada.favourites"), "flights in your table")


# -- 01


@pytest.fixture
def cities(catalog: Catalog) -> Lab:
    schema = pa.schema([("city", pa.string()), ("hour", pa.int32()), ("celsius", pa.float64())])
    table = catalog.create_table("ws_ada.anatomy", schema)
    for city, celsius in (("Oslo", 2.0), ("Rome", 18.0), ("Cairo", 29.0)):
        rows = {"city": [city] * 24, "hour": list(range(24)), "celsius": [celsius] * 24}
        table.append(pa.table(rows, schema))
    table.delete("city = 'Rome' and hour >= 12")
    store = SimpleNamespace(get_file_info=lambda _: [])
    return lab_of(catalog, store=store)


def test_a_manifest_with_only_a_deleted_file_counts_and_who_leaves_it_out_hears_that(cities: Lab) -> None:
    table = cities.catalog.load_table("ws_ada.anatomy")
    live = [one.has_added_files() or one.has_existing_files() for one in anatomy.manifests(table)]
    assert live.count(False) == 1, "Java's readers leave it out, so 8 is not a silly answer"
    lying = [SimpleNamespace(type=fs.FileType.File, path="a/b", size=1, mtime=pd.Timestamp(0, tz="UTC"))]
    lab = lab_of(cities.catalog, store=SimpleNamespace(get_file_info=lambda _: lying))
    taken(nb01.exercise_1(lab, 9))
    refused(nb01.exercise_1(lab, 8), "the manifest that has only a deleted file is one too")


@pytest.mark.long
def test_one_file_alone_may_be_a_text(cities: Lab) -> None:
    found = anatomy.bounds(cities.catalog.load_table("ws_ada.anatomy"), "celsius")
    (oslo,) = found["file"][found["least"] < 5]
    for answer in (oslo, [oslo], {oslo}, (oslo,), found["file"][found["least"] < 5], np.array([oslo])):
        taken(nb01.exercise_2(cities, answer))
    refused(nb01.exercise_2(cities, "oslo.parquet"), "'oslo.parquet' is no data file")


@pytest.mark.long
def test_what_a_deletion_took_and_put_may_be_written_in_any_way(cities: Lab) -> None:
    table = cities.catalog.load_table("ws_ada.anatomy")
    kept = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    before, after = anatomy.data_files(table, kept[2]), anatomy.data_files(table)
    (taken_out,), (put_in,) = before - after, after - before
    for answer in (
        (before - after, after - before),
        (taken_out, put_in),
        [[taken_out], [put_in]],
        (before.difference(after), frozenset(after - before)),
    ):
        taken(nb01.exercise_3(cities, answer))
    refused(nb01.exercise_3(cities, (put_in, taken_out)), "swapped")


# -- 02


def bounded(store: Any) -> None:
    for _ in range(5):
        found = store.get("counter")
        with suppress(StoreRefusedError):
            store.put("counter", b"%d" % (int(found.data) + 1), if_match=found.etag)
            return


def again(store: Any) -> None:
    found = store.get("counter")
    try:
        store.put("counter", str(int(found.data.decode()) + 1).encode(), if_match=found.etag)
    except StoreRefusedError:
        again(store)


def until_done(store: Any) -> int:
    done = False
    while not done:
        found = store.get("counter")
        value = int(found.data) + 1
        try:
            store.put(key="counter", data=str(value).encode(), if_match=found.etag)
            done = True
        except Exception:  # noqa: BLE001 - as students write it
            time.sleep(0.001)
    return value


@pytest.mark.parametrize("answer", [bounded, again, until_done])
def test_one_may_be_added_in_a_loop_of_any_kind(answer: Callable[[Any], Any]) -> None:
    taken(nb02.exercise_1(lab_of(), answer))


def stale_and_catches_all(store: Any) -> None:
    found = store.get("counter")
    while True:
        try:
            store.put("counter", b"6", if_match=found.etag)
            return
        except Exception:  # noqa: BLE001 - as students write it
            continue


def stale_and_catches_more(store: Any) -> None:
    found = store.get("counter")
    while True:
        try:
            return store.put("counter", b"6", if_match=found.etag)  # type: ignore[no-any-return]
        except BaseException:  # noqa: BLE001 - as students write it
            continue


@pytest.mark.timeout(20)
@pytest.mark.parametrize("answer", [stale_and_catches_all, stale_and_catches_more])
def test_an_answer_that_would_never_end_does_not_stop_the_notebook(answer: Callable[[Any], Any]) -> None:
    refused(nb02.exercise_1(lab_of(), answer), "did not end")


def test_the_base_of_a_rebase_is_asked_for_in_order(catalog: Catalog) -> None:
    table = catalog.create_table("ws_ada.counter", pa.schema([("n", pa.int64())]))
    table.append(pa.table({"n": [0]}))
    first = table.current_snapshot()
    assert first is not None
    refused(nb02.exercise_2(lab_of(catalog), first.snapshot_id), "Ada has not committed yet")
    table.append(pa.table({"n": [1]}))
    ada = table.current_snapshot()
    assert ada is not None
    for answer in (ada.snapshot_id, np.int64(ada.snapshot_id), str(ada.snapshot_id)):
        taken(nb02.exercise_2(lab_of(catalog), answer))
    refused(nb02.exercise_2(lab_of(catalog), str(first.snapshot_id)), "main has moved on since")


# -- 03


@pytest.mark.parametrize("answer", [0.5, 0.75, np.float32(0.5), np.float64(0.9)])
def test_a_latency_may_be_any_number(answer: Any) -> None:
    taken(nb03.exercise_1(lab_of(), answer))


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), 0, -1, 1, True, "0.5"])
def test_a_latency_that_is_none_is_refused(answer: Any) -> None:
    assert not nb03.exercise_1(lab_of(), answer).right


def nearest(rows: pd.DataFrame) -> float:
    return sorted(rows["seconds"])[int(0.95 * len(rows))]  # type: ignore[no-any-return]


def nearest_below(rows: pd.DataFrame) -> float:
    return float(rows["seconds"].sort_values().iloc[-(-len(rows) * 95 // 100) - 1])


PERCENTILES: list[Callable[[pd.DataFrame], Any]] = [
    lambda rows: rows["seconds"].quantile(0.95),
    lambda rows: np.percentile(rows["seconds"], 95),
    lambda rows: rows["seconds"].quantile(0.95, interpolation="higher"),
    lambda rows: statistics.quantiles(rows["seconds"], n=20)[-1],
    lambda rows: statistics.quantiles(rows["seconds"], n=100, method="inclusive")[94],
    nearest,
    nearest_below,
]
NO_PERCENTILES: list[Callable[[pd.DataFrame], Any]] = [
    lambda rows: rows["seconds"].quantile(0.9),
    lambda rows: rows["seconds"].quantile(0.99),
    lambda rows: rows["seconds"].mean(),
    lambda rows: rows["seconds"].max(),
    lambda rows: rows["seconds"].max() * 0.95,
]


@pytest.mark.parametrize("count", [161, 300, 457, 2000])
def test_a_percentile_may_be_computed_in_each_of_its_ways(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, count: int
) -> None:
    chance = random.Random(count)
    seconds = [round(0.02 + chance.expovariate(2), 3) for _ in range(count)]
    monkeypatch.setattr(nb03, "of_rows", lambda *_: pd.DataFrame({"seconds": seconds}))
    catalog.create_table("ws_ada.orders", pa.schema([("n", pa.int64())]))
    for number, answer in enumerate(PERCENTILES):
        verdict = nb03.exercise_2(lab_of(catalog), answer)
        assert verdict.right, (number, verdict.message)
    for number, answer in enumerate(NO_PERCENTILES):
        assert not nb03.exercise_2(lab_of(catalog), answer).right, number


SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: ws-ada-readings}
spec:
  source: {kafka: {topic: workshop.ada.readings, create: true, partitions: 2}}
  table: {namespace: ws_ada, name: readings}
  schema:
    fields:
      - {name: sensor, type: string, required: true}
      - {name: at, type: timestamptz, required: true}
      - {name: celsius, type: double}
      - {name: ok, type: boolean}
"""


@pytest.mark.parametrize(
    "text",
    [
        SPEC,
        SPEC.replace("type: double", 'type: "decimal(4, 1)"'),
        SPEC.replace("type: double", "type: float, required: true"),
        SPEC.replace("ws-ada-readings", "ws-ada-mine") + "  batching: {maxLatencySeconds: 0.5}\n",
        SPEC + "      - {name: note, type: string}\n",
    ],
)
def test_a_spec_may_say_more_than_is_asked_for(text: str) -> None:
    taken(nb03.exercise_3(lab_of(), text))


def test_a_spec_that_would_refuse_the_message_is_refused() -> None:
    more = SPEC + "      - {name: floor, type: long, required: true}\n"
    refused(nb03.exercise_3(lab_of(), more), "would be a bad record")
    whole = SPEC.replace("type: double", 'type: "decimal(4, 0)"')
    refused(nb03.exercise_3(lab_of(), whole), "celsius is decimal(4, 0)")


# -- 04


def by_frames(rows: pd.DataFrame, ends: dict[int, int]) -> tuple[int, int]:
    places = [(p, o) for p, end in ends.items() for o in range(end)]
    wanted = pd.DataFrame(places, columns=["partition", "offset"])
    both = wanted.merge(rows.drop_duplicates(), how="left", on=["partition", "offset"], indicator=True)
    return int((both["_merge"] == "left_only").sum()), int(rows.duplicated().sum())


def by_counter(rows: pd.DataFrame, ends: dict[int, int]) -> list[int]:
    seen = Counter(zip(rows["partition"], rows["offset"], strict=True))
    missing = sum((p, o) not in seen for p, end in ends.items() for o in range(end))
    return [missing, sum(count - 1 for count in seen.values())]


def by_numbers(rows: pd.DataFrame, ends: dict[int, int]) -> tuple[Any, Any]:
    once = rows.drop_duplicates()
    return np.int64(sum(ends.values()) - len(once)), np.int64(len(rows) - len(once))


@pytest.mark.parametrize("answer", [by_frames, by_counter, by_numbers])
def test_an_audit_may_be_written_in_any_way(answer: Callable[..., Any]) -> None:
    taken(nb04.exercise_1(lab_of(), answer))


KEYS: list[Callable[[Any], Any]] = [
    lambda sale: f"{sale['till']}/{sale['number']}",
    lambda sale: "-".join(str(sale[name]) for name in sorted(sale)),
    lambda sale: hashlib.sha256(f"{sale['till']}:{sale['number']}".encode()).hexdigest(),
    lambda sale: str(uuid.uuid5(uuid.NAMESPACE_URL, f"{sale['till']}/{sale['number']}")),
    lambda sale: f"{sale['till']:03d}{sale['number']:09d}",
]
NO_KEYS: list[Callable[[Any], Any]] = [
    lambda sale: str(hash(f"{sale['till']}-{sale['number']}")),
    lambda sale: f"{datetime.now(UTC):%Y-%m-%d}-{sale['till']}-{sale['number']}",
    lambda sale: f"{int(time.time())}-{sale['till']}-{sale['number']}",
    lambda sale: f"{sale['till']}-{sale['number']}".ljust(300, "x"),
    lambda sale: f"{sale['till']} {sale['number']}",
]


@pytest.mark.parametrize("answer", KEYS)
def test_a_key_may_be_made_in_any_steady_way(answer: Callable[[Any], Any]) -> None:
    taken(nb04.exercise_3(lab_of(), answer))


@pytest.mark.parametrize("answer", NO_KEYS)
def test_a_key_of_the_time_or_of_one_process_is_refused(answer: Callable[[Any], Any]) -> None:
    assert not nb04.exercise_3(lab_of(), answer).right


# -- 05


class FrameOfPandas:
    """As much of a DataFrame of Spark as the checker uses of an answer."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = rows

    def repartition(self, *_: Any) -> FrameOfPandas:
        return self

    def toPandas(self) -> pd.DataFrame:
        return self.rows


class SparkOfPandas:
    def createDataFrame(self, rows: Any, schema: str) -> FrameOfPandas:
        columns = [part.split()[0] for part in schema.split(", ")]
        return FrameOfPandas(pd.DataFrame(rows, columns=columns))


def first_rows(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values("heard").drop_duplicates("event_id")


def with_all_columns(events: Any) -> Any:
    named = [
        *("event_id", "heard", "event", "time_hour", "carrier", "flight"),
        *("origin", "dest", "dep_delay", "arr_delay"),
    ]
    return FrameOfPandas(first_rows(events.toPandas())[named])


def mixed(events: Any) -> Any:
    return FrameOfPandas(events.toPandas().groupby("event_id", as_index=False).min())


def first_that_is_not_null(events: Any) -> Any:
    ordered = events.toPandas().sort_values("heard")
    return FrameOfPandas(ordered.groupby("event_id", as_index=False).first())


def test_each_event_once_may_name_every_column_of_bronze() -> None:
    lab = lab_of(spark=SparkOfPandas())
    taken(nb05.exercise_2(lab, with_all_columns))
    taken(nb05.exercise_2(lab, lambda events: FrameOfPandas(first_rows(events.toPandas()))))


@pytest.mark.parametrize("answer", [mixed, first_that_is_not_null])
def test_an_event_that_is_put_together_of_several_messages_is_refused(answer: Callable[[Any], Any]) -> None:
    refused(nb05.exercise_2(lab_of(spark=SparkOfPandas()), answer), "of different messages")


# -- 06


@pytest.fixture
def deliveries(catalog: Catalog) -> Lab:
    """The four deliveries of the notebook, each on its branch; Trino takes a condition in pandas' words."""
    cells = [source(cell) for cell in read("06_time_travel.ipynb")["cells"]]
    (cell,) = [text for text in cells if text.startswith("deliveries = {")]
    rows: dict[str, dict[str, Any]] = ast.literal_eval(cell.partition("= ")[2].partition("\n}\n")[0] + "}")
    shape = pa.schema([("product", pa.string()), ("price", pa.float64())])
    table = catalog.create_table("ws_ada.prices", shape)
    table.append(pa.table({"product": ["tea"], "price": [4.5]}, shape))
    listed = {}
    for branch, delivered in rows.items():
        table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, branch).commit()
        table.append(pa.table(delivered, shape), branch=branch)
        listed[branch] = pd.DataFrame({"price": [4.5, *delivered["price"]]}, dtype=float)

    def trino(statement: str) -> pd.DataFrame:
        branch, _, condition = statement.partition(": ")
        return pd.DataFrame({"n": [len(listed[branch].query(condition))]})

    return lab_of(catalog, trino=trino)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("price.isna() or price < 0.01 or price > 50", ""),
        ("not (price >= 0.01 and price <= 50)", ""),
        ("price > 50", "it lets prices of zero and below go out"),
        ("price < 0.01 or price > 50", "it lets a product without a price go out"),
        ("price.isna() or price < 0 or price > 50", "it counts 1 of 2 bad rows on the branch refund"),
        ("price.isna() or price <= 0 or price > 500", "it counts 1 of 2 bad rows on the branch cents"),
        ("price.isna() or price < 0.01 or price >= 50", "it stops the good delivery"),
        ("price.isna() or price < 1 or price > 50", "it stops the good delivery"),
    ],
)
def test_an_audit_has_the_bounds_that_were_asked_for(deliveries: Lab, condition: str, words: str) -> None:
    verdict = nb06.exercise_2(deliveries, f"{{branch}}: {condition}")
    if words:
        refused(verdict, words)
    else:
        taken(verdict)


# -- 07


@pytest.fixture
def invoices(catalog: Catalog) -> Any:
    columns = pa.schema([("id", pa.int64()), ("cust", pa.string()), ("total", pa.float32())])
    table = catalog.create_table("ws_ada.invoices", columns)
    table.append(pa.table({"id": [1, 2, 3], "cust": ["a", "b", "a"], "total": [1.5, 2.5, 4.0]}, columns))
    with table.update_schema() as change:
        change.rename_column("cust", "customer").update_column("total", DoubleType())
    return table


def test_a_column_that_was_added_twice_is_there(catalog: Catalog, invoices: Any) -> None:
    with invoices.update_schema() as change:
        change.add_column("vat", StringType())
    with invoices.update_schema() as change:
        change.delete_column("vat")
    refused(nb07.exercise_2(lab_of(catalog), invoices), "there is no column vat")
    with invoices.update_schema() as change:
        change.add_column("vat", DoubleType())
    taken(nb07.exercise_2(lab_of(catalog), invoices))


def test_a_field_id_may_be_a_number_of_numpy(catalog: Catalog) -> None:
    table = catalog.create_table("ws_ada.sales", pa.schema([("at", pa.int64()), ("price", pa.float64())]))
    table.append(pa.table({"at": [1], "price": [1.0]}))
    taken(nb07.exercise_1(lab_of(catalog), np.int64(2)))
    refused(nb07.exercise_1(lab_of(catalog), True), "asked for is a whole number")


# -- 08


@pytest.fixture
def timetable(monkeypatch: pytest.MonkeyPatch) -> dict[str, pd.DataFrame]:
    chance = random.Random(8)
    lines = []
    for number in range(600):
        delay = None if number % 17 == 0 else chance.randint(-10, 90)
        lines.append(
            {
                "origin": ("EWR", "JFK", "LGA")[number % 3],
                "dest": f"D{number % 20:02}",
                "flight": number,
                "date": pd.Timestamp("2013-07-01").date() + timedelta(days=number % 5),
                "time_hour": pd.Timestamp("2013-07-01", tz="UTC") + pd.Timedelta(hours=number % 100),
                "dep_delay": delay,
                "arr_delay": delay,
            }
        )
    flights = pd.DataFrame(lines)
    weather = flights[["origin", "time_hour"]].drop_duplicates()
    weather = weather.assign(wind_speed=[None if n % 40 == 0 else float(n % 25) for n in range(len(weather))])
    tables = {"timetable": flights, "weather": weather}
    monkeypatch.setattr(scratch, "whole", lambda _lab, name: tables[name])
    return tables


def shares(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    both = tables["timetable"].merge(tables["weather"].dropna(), on=["origin", "time_hour"])
    grouped = both.assign(windy=both["wind_speed"] > 15, gone=both["dep_delay"].isna()).groupby("windy")
    return grouped.agg(flights=("flight", "size"), cancelled=("gone", "mean")).reset_index()


def test_means_and_shares_may_be_rounded(timetable: dict[str, pd.DataFrame]) -> None:
    by_dest = timetable["timetable"].groupby("dest", as_index=False)
    found = by_dest.agg(flights=("flight", "size"), mean_delay=("arr_delay", "mean"))
    worst = found.sort_values("mean_delay", ascending=False).head(5)
    for places in (1, 2, 9):
        taken(nb08.exercise_1(lab_of(), worst.assign(mean_delay=worst["mean_delay"].round(places))))
    no_nulls = timetable["timetable"].assign(arr_delay=timetable["timetable"]["arr_delay"].fillna(0))
    other = no_nulls.groupby("dest")["arr_delay"].mean()
    mine = worst.assign(mean_delay=list(other[worst["dest"]]))
    refused(nb08.exercise_1(lab_of(), mine), "without turning null into 0")

    good = shares(timetable)
    taken(nb08.exercise_2(lab_of(), good))
    taken(nb08.exercise_2(lab_of(), good.assign(cancelled=good["cancelled"].round(3))))
    taken(nb08.exercise_2(lab_of(), good.assign(windy=good["windy"].astype(int))))
    taken(nb08.exercise_2(lab_of(), good.iloc[::-1].assign(cancelled=good["cancelled"].map(Decimal))))
    tenths = good.assign(cancelled=[Decimal("0.1"), Decimal("0.0")])
    refused(nb08.exercise_2(lab_of(), tenths), "one digit after the point")
    percent = good.assign(cancelled=good["cancelled"] * 100)
    refused(nb08.exercise_2(lab_of(), percent), "a share is between 0 and 1")

    days = timetable["timetable"].groupby(["origin", "date"], as_index=False)["dep_delay"].mean()
    last = days.sort_values("dep_delay").groupby("origin").tail(1).rename(columns={"dep_delay": "mean_delay"})
    taken(nb08.exercise_3(lab_of(), last.assign(mean_delay=last["mean_delay"].round(2))))
    taken(nb08.exercise_3(lab_of(), last.assign(date=last["date"].astype(str))))


# -- 09


def test_lateness_is_a_whole_number_of_any_kind_and_twice_sent_events_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = [datetime(2026, 3, 2, hour, tzinfo=UTC) for hour in (8, 9, 12, 10, 13)]
    rows = pd.DataFrame({"id": list("abcde"), "at": at, "_tarn": [{"offset": n} for n in range(5)]})
    monkeypatch.setattr(scratch, "whole", lambda *_: rows)
    for answer in (2, np.int64(2)):
        taken(nb09.exercise_1(lab_of(), answer))
    refused(nb09.exercise_1(lab_of(), 1), "events are late")
    twice = pd.concat([rows, rows.assign(_tarn=[{"offset": 5 + n} for n in range(5)])])
    monkeypatch.setattr(scratch, "whole", lambda *_: twice)
    refused(nb09.exercise_1(lab_of(), 2), "sent more than once")


STARTS: list[Callable[[datetime], Any]] = [
    lambda at: [pd.Timestamp(at).floor("h") - AN_HOUR, pd.Timestamp(at).floor("h")],
    lambda at: [datetime(at.year, at.month, at.day, at.hour, tzinfo=UTC) - n * AN_HOUR for n in (1, 0)],
    lambda at: [datetime.fromtimestamp(at.timestamp() // 3600 * 3600 - n * 3600, UTC) for n in (1, 0)],
]


@pytest.mark.parametrize("answer", STARTS)
def test_starts_may_be_computed_in_any_way(answer: Callable[[datetime], Any]) -> None:
    taken(nb09.exercise_2(lab_of(), answer))


def test_starts_without_a_zone_are_named_as_such() -> None:
    def naive(at: datetime) -> list[datetime]:
        hour = datetime(at.year, at.month, at.day, at.hour)
        return [hour - AN_HOUR, hour]

    refused(nb09.exercise_2(lab_of(), naive), "no time zone")


def by_generator(windows: Any) -> Any:
    before: dict[str, tuple[datetime, float]] = {}
    for start, origin, _, delay in windows:
        was = before.get(origin)
        if delay >= 30 and not (was and was[0] == start - 2 * AN_HOUR and was[1] >= 30):
            yield start, origin
        before[origin] = (start, delay)


def by_pandas(windows: Any) -> list[list[Any]]:
    rows = pd.DataFrame(windows, columns=["start", "origin", "flights", "delay"])
    late = rows[rows["delay"] >= 30]
    known = set(zip(late["start"], late["origin"], strict=True))
    return [
        [s, o]
        for s, o in zip(late["start"], late["origin"], strict=True)
        if (s - 2 * AN_HOUR, o) not in known
    ]


@pytest.mark.parametrize("answer", [by_generator, by_pandas])
def test_alerts_may_be_found_in_any_way(answer: Callable[[Any], Any]) -> None:
    taken(nb09.exercise_3(lab_of(), answer))


def test_alerts_as_many_as_asked_for_and_others_are_named() -> None:
    def swapped(windows: Any) -> list[Any]:
        return [(origin, start) for start, origin in by_generator(windows)]

    verdict = nb09.exercise_3(lab_of(), swapped)
    refused(verdict, "JFK, 10:00:00 is none of the alerts asked for")


# -- 11


@pytest.mark.parametrize(
    "moment",
    [
        lambda at: at.isoformat(),
        str,
        lambda at: at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        lambda at: at.astimezone().isoformat(),
    ],
)
def test_a_time_is_what_ingest_takes_for_one(moment: Callable[[datetime], str]) -> None:
    begin = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
    events = [{"id": n, "at": moment(begin + n * AN_HOUR)} for n in range(100)]
    taken(nb11.exercise_1(lab_of(), events))
    days = [{"id": n, "at": "2026-03-02"} for n in range(100)]
    refused(nb11.exercise_1(lab_of(), days), "no key has a time")


# -- errors that are not the answer's


def fails(error: Exception) -> Callable[..., Any]:
    def load_table(*_: Any) -> Any:
        raise error

    return load_table


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoSuchTableError("Table does not exist: ws_ada.anatomy"), "run the cells from the top"),
        (NameError("name 'table' is not defined"), "run the cells from the top"),
        (TableAlreadyExistsError("Table ws_ada.anatomy already exists"), "lab.reset()"),
        (ConnectionRefusedError(111, "Connection refused"), "scripts/tarn status"),
        (ValueError("1 validation error\nUnsupported field type: 'variant'"), "ask Trino or Spark"),
        (ValueError("something else"), "it is of type int"),
    ],
)
def test_what_is_not_the_answers_fault_is_said_with_what_to_do(error: Exception, words: str) -> None:
    from tarn.workshop.notebooks import notebook
    from tarn.workshop.settings import WorkshopSettings

    lines: list[str] = []
    lab = Lab(notebook("01"), WorkshopSettings(), "ada", lines.append)
    vars(lab)["catalog"] = SimpleNamespace(load_table=fails(error))
    lab.check("1", 9)
    assert lines[-1].startswith("✗ exercise 1: the answer could not be checked: ")
    assert "\n  Hint: " in lines[-1]
    assert words in lines[-1]


def test_a_csv_file_as_a_spreadsheet_writes_it_is_read(tmp_path: Path) -> None:
    """With a byte order mark, which was part of the first name, and a short line, which stopped the cell."""
    (cell,) = (one for one in map(source, read("11_capstone.ipynb")["cells"]) if "def from_csv" in one)
    tree = ast.parse(cell)
    tree.body = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name != "cafe"]
    found: dict[str, Any] = {"csv": csv, "Path": Path, "re": re}
    exec(compile(tree, "cell", "exec"), found)
    file = tmp_path / "own.csv"
    for separator in b",", b";", b"\t":
        text = b"\xef\xbb\xbfid,at,price\r\na,2026-03-02T08:00:00Z,2.5\r\nb,\r\n"
        file.write_bytes(text.replace(b",", separator))
        assert list(found["from_csv"](file)) == [
            {"id": "a", "at": "2026-03-02T08:00:00Z", "price": 2.5},
            {"id": "b", "at": None, "price": None},
        ]
    file.write_text("id,text\n1,two, three\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"more fields than in the first line, is a , in a text\?.* three"):
        list(found["from_csv"](file))
    number = found["number"]
    assert [number(text) for text in ("0", " -12 ", "0.50", "1e-05", "1E+16", "")] == [
        0,
        -12,
        0.5,
        1e-5,
        1e16,
        None,
    ]
    # Two texts that are different stay so, and what JSON has no form for is no number.
    for text in "1_0", "01234", "nan", "inf", "1e999", "٣", "4" * 20:
        assert number(text) == text
