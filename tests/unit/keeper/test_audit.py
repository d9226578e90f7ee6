"""The pure checks on a hand-written table: one fault at a time, and only that one is reported."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from tarn.core.audit.model import (
    NOTES,
    Ahead,
    Bounds,
    FileEntry,
    Finding,
    Kind,
    Logged,
    ManifestEntry,
    Table,
    locations,
)
from tarn.core.audit.names import keys_to_copy
from tarn.core.audit.offsets import judge_letters, judge_offsets, letter_facts, letters_needed, stands
from tarn.core.audit.tables import judge_table, version_of
from tarn.core.catalog_objects import PointerValue
from tarn.core.dead_letter import rows_expected

ROOT = "s3://tarn/warehouse/bronze/orders-u1"
META = f"{ROOT}/metadata"
SOURCE = {"v": 1, "cluster": "c", "topic": "orders", "topic-id": "t"}


def offsets(**after: int) -> str:
    return json.dumps({**SOURCE, "next": {name.lstrip("p"): n for name, n in after.items()}})


def snapshot(number: int, **summary: str) -> dict[str, Any]:
    return {
        "snapshot-id": number,
        "parent-snapshot-id": number - 1 if number > 1 else None,
        "sequence-number": number,
        "manifest-list": f"{META}/snap-{number}.avro",
        "summary": {"operation": "append", **summary},
    }


def data(number: int, *, rows: int = 5, first: int | None = None) -> FileEntry:
    """The file of snapshot `number`: five rows of partition 0, starting at the previous file's end."""
    start = (number - 1) * 5 if first is None else first
    return FileEntry(
        f"{ROOT}/data/{number}.parquet",
        100 + number,
        rows,
        snapshot_id=number,
        bounds=Bounds(0, 0, start, start + rows - 1),
    )


def whole(count: int = 3) -> Table:
    """A table with one file and one manifest for each snapshot."""
    manifests = {f"{META}/{n}-m0.avro": (data(n),) for n in range(1, count + 1)}
    entries = [ManifestEntry(path, 50) for path in manifests]
    metadata = {
        "table-uuid": "u1",
        "location": ROOT,
        "current-snapshot-id": count,
        "snapshots": [snapshot(n, **{"tarn.offsets.s": offsets(p0=5 * n)}) for n in range(1, count + 1)],
        "refs": {
            "main": {"snapshot-id": count, "type": "branch"},
            "tarn-offsets-s": {"snapshot-id": count, "type": "tag"},
        },
    }
    names = [f"{META}/{n:05}-x.metadata.json" for n in range(count + 1)]
    parents = [None, *names]
    return Table(
        pointer=PointerValue(
            key="catalog/v1/pointers/bronze/orders.json",
            kind="table",
            state="live",
            namespace=("bronze",),
            name="orders",
            uuid="u1",
            version=count + 1,
            metadata=names[-1],
            written_ms=1_000,
        ),
        metadata=metadata,
        logged=tuple(
            Logged(location=name, size_bytes=9, uuid="u1", parent=parents[n])
            for n, name in enumerate(names[:-1])
        ),
        lists={f"{META}/snap-{n}.avro": tuple(entries[:n]) for n in range(1, count + 1)},
        manifests=manifests,
        unreadable={},
    )


def sizes(table: Table) -> dict[str, int]:
    found = dict.fromkeys(locations(table), 9)
    for entries in table.lists.values():
        found.update({entry.path: entry.bytes for entry in entries or ()})
    for files in table.manifests.values():
        found.update({entry.path: entry.bytes for entry in files or ()})
    return found


def told(table: Table, there: dict[str, int] | None = None) -> list[Finding]:
    known = sizes(table) if there is None else there
    return [*judge_table(table, known.get), *judge_offsets(table)]


def kinds(table: Table, there: dict[str, int] | None = None) -> list[Kind]:
    return [finding.kind for finding in told(table, there)]


def with_files(table: Table, number: int, *files: FileEntry) -> Table:
    return replace(table, manifests={**table.manifests, f"{META}/{number}-m0.avro": files})


def test_a_whole_table_has_nothing_to_tell():
    table = whole()
    assert told(table) == []
    (stand,) = stands(table)
    assert dict(stand.map.next) == {0: 15}


def test_every_object_is_named_once_and_what_names_another_comes_after_it():
    table = whole(2)
    found = list(locations(table))
    assert len(set(found)) == len(found) == 2 + 2 + 2 + 2 + 1
    order = [found.index(name) for name in (data(1).path, f"{META}/1-m0.avro", f"{META}/snap-1.avro")]
    assert order == sorted(order)
    assert found[-1] == table.pointer.metadata


@pytest.mark.parametrize(
    ("gone", "kind", "touched"),
    [
        (f"{ROOT}/data/1.parquet", Kind.FILE, "3 of 3 snapshots need them, the current one too"),
        (f"{META}/2-m0.avro", Kind.MANIFEST, "2 of 3 snapshots need them, the current one too"),
        (f"{META}/snap-2.avro", Kind.LIST, "1 of 3 snapshots need them, not the current one"),
    ],
)
def test_what_is_missing_is_named_with_the_snapshots_that_need_it(gone: str, kind: Kind, touched: str):
    table = whole()
    there = sizes(table)
    del there[gone]
    (finding,) = told(table, there)
    assert finding.kind is kind
    assert f"1 missing: {gone}; {touched}" in finding.what
    assert finding.damage


def test_many_missing_files_are_one_finding_with_a_number():
    table = whole(9)
    there = {path: size for path, size in sizes(table).items() if not path.endswith(".parquet")}
    (finding,) = told(table, there)
    assert "9 missing" in finding.what
    assert "and 4 more" in finding.what


def test_a_size_that_differs():
    table = whole()
    there = {**sizes(table), data(2).path: 7}
    (finding,) = told(table, there)
    assert (finding.kind, finding.where) == (Kind.SIZE, "bronze.orders")
    assert f"{data(2).path} (7 bytes, stated 102)" in finding.what


def test_a_file_that_is_live_twice_in_one_snapshot_and_one_that_only_was_rewritten():
    table = whole()
    twice = with_files(table, 3, data(3), data(1))
    assert Kind.DOUBLE in kinds(twice)
    in_one = with_files(table, 3, data(3), data(3))
    assert Kind.DOUBLE in kinds(in_one)
    # Manifests 1 and 2 merged into a new one, which replaces them in snapshot 3: not a duplicate.
    merged = replace(
        table,
        lists={
            **table.lists,
            f"{META}/snap-3.avro": (
                ManifestEntry(f"{META}/m.avro", 50),
                ManifestEntry(f"{META}/3-m0.avro", 50),
            ),
        },
        manifests={**table.manifests, f"{META}/m.avro": (data(1), data(2))},
    )
    assert told(merged) == []


def test_delete_files_may_share_one_puffin():
    table = whole()
    deletes = replace_path(data(3), f"{ROOT}/data/dv.puffin")
    assert told(with_files(table, 3, data(3), deletes, deletes)) == []


def replace_path(entry: FileEntry, path: str) -> FileEntry:
    return FileEntry(path, 5, 1, deletes=True, snapshot_id=entry.snapshot_id)


def test_refs_and_the_current_snapshot():
    table = whole()
    table.metadata["refs"]["audit"] = {"snapshot-id": 99, "type": "tag"}
    assert [f.what for f in told(table)] == [
        "tag audit points at snapshot 99, which is none of the 3 that are kept"
    ]
    table = whole()
    table.metadata["current-snapshot-id"] = 2
    assert [f.what for f in told(table)] == ["the current snapshot is 2, main is at 3"]
    table.metadata["current-snapshot-id"] = 99
    assert kinds(table) == [Kind.REF]


def test_the_log():
    table = whole()
    log = table.logged
    assert kinds(replace(table, logged=(log[0], replace(log[1], parent="other"), log[2]))) == [
        Kind.LOG_BROKEN
    ]
    assert kinds(replace(table, logged=(log[0], replace(log[1], uuid="u2"), log[2]))) == [Kind.LOG_BROKEN]
    assert kinds(replace(table, logged=log[1:])) == []
    gone = Logged(location=log[1].location)
    assert kinds(replace(table, logged=(log[0], gone, log[2]))) == [Kind.LOG_MISSING]
    turned = replace(table, logged=(log[1], log[0], log[2]))
    assert set(kinds(turned)) == {Kind.LOG_BROKEN}
    assert kinds(replace(table, pointer=replace(table.pointer, uuid="u2"))) == [Kind.METADATA_OTHER]
    assert version_of(log[2].location) == 2
    assert version_of("s3://tarn/x/v2.metadata.json") is None


def ahead(number: int, parent: str | None, at_ms: int = 2_000) -> Ahead:
    return Ahead(location=f"{META}/{number:05}-y.metadata.json", parent=parent, updated_ms=at_ms)


def test_metadata_ahead_of_the_pointer():
    table = whole()
    one = ahead(4, table.pointer.metadata)
    assert kinds(replace(table, ahead=(one,))) == [Kind.METADATA_AHEAD]
    two = ahead(5, one.location)
    (finding,) = told(replace(table, ahead=(one, two)))
    assert finding.kind is Kind.METADATA_OLD
    assert two.location in finding.what
    # Stray files of another base, and a pointer written after all of them, give no finding.
    assert kinds(replace(table, ahead=(ahead(4, "elsewhere"), ahead(5, "elsewhere")))) == []
    late = replace(table.pointer, written_ms=10_000)
    assert kinds(replace(table, pointer=late, ahead=(one, two))) == []


def with_map(table: Table, number: int, text: str, **summary: str) -> Table:
    table.metadata["snapshots"][number - 1]["summary"].update({"tarn.offsets.s": text, **summary})
    return table


@pytest.mark.parametrize(
    ("text", "kind", "part"),
    [
        (offsets(p0=3), Kind.OFFSETS_BROKEN, "partition 0 stood at 5 before and stands at 3 now"),
        (offsets(p1=10), Kind.OFFSETS_BROKEN, "partition 0 stood at 5 before and is in the map no more"),
        (offsets(p0=8), Kind.OFFSETS_DOUBLED, "has offset 9 of partitions 0 to 0, and the map ends at 8"),
        (json.dumps({**SOURCE, "topic-id": "new", "next": {"0": 10}}), Kind.OFFSETS_BROKEN, "(new)"),
        ("{", Kind.OFFSETS_UNREADABLE, "cannot be read"),
    ],
)
def test_a_map_that_does_not_follow_from_the_one_before(text: str, kind: Kind, part: str):
    found = [f for f in told(with_map(whole(2), 2, text)) if f.kind is kind]
    assert found
    assert part in found[0].what
    assert found[0].what.startswith("stream s, snapshot 2: ")


def test_rows_that_begin_before_the_map_or_are_more_than_it_covers():
    early = with_files(whole(), 2, data(2, first=3))
    assert kinds(early) == [Kind.OFFSETS_DOUBLED]
    assert "which the map before it had up to 5 already" in told(early)[0].what
    many = with_files(whole(), 2, data(2), replace_bounds(data(2), "more.parquet"))
    (finding,) = told(many)
    assert finding.what.endswith("it adds 5 rows more than the offsets that it covers")


def replace_bounds(entry: FileEntry, name: str) -> FileEntry:
    return FileEntry(f"{ROOT}/data/{name}", 1, entry.records, snapshot_id=entry.snapshot_id)


def test_a_hole_is_a_note_and_dead_letters_fill_it():
    hole = with_files(whole(), 2, data(2, rows=3))
    (finding,) = told(hole)
    assert finding.kind is Kind.OFFSETS_HOLE
    assert not finding.damage
    assert "2 covered offsets have neither row nor dead letter" in finding.what
    letters = json.dumps([["s3://tarn/warehouse/ops/d-u2/data/l.parquet", 2, 9, 2]])
    filled = with_map(hole, 2, offsets(p0=10), **{"tarn.dead-letters.s": letters})
    assert told(filled) == []


def test_foreign_commits_rewrites_and_expired_history_break_no_chain():
    table = whole(4)
    table.metadata["snapshots"][1]["summary"] = {"operation": "append"}
    table.metadata["snapshots"][2]["summary"]["operation"] = "replace"
    del table.metadata["snapshots"][0]
    assert [f for f in judge_offsets(table) if f.damage] == []


def repeating(table: Table, number: int, other: str) -> Table:
    """The table whose snapshot `number` repeats the map of a stream `other`, which is silent."""
    snapshots = [dict(one) for one in table.metadata["snapshots"]]
    more = {"tarn.offsets.other": other, "tarn.restated.other": "1"}
    snapshots[number - 1]["summary"] = {**snapshots[number - 1]["summary"], **more}
    return replace(table, metadata={**table.metadata, "snapshots": snapshots})


def test_a_map_that_is_repeated_is_of_no_row_and_excuses_none():
    other = json.dumps({**SOURCE, "topic": "others", "topic-id": "o", "next": {"0": 500}})
    assert told(repeating(whole(), 2, other)) == []
    assert {one.stream: dict(one.map.next) for one in stands(repeating(whole(), 2, other))} == {
        "s": {0: 15},
        "other": {0: 500},
    }
    beyond = with_files(whole(), 2, data(2, first=90))
    assert kinds(repeating(beyond, 2, other)) == kinds(beyond) == [Kind.OFFSETS_DOUBLED]
    hole = with_files(whole(), 2, data(2, rows=3))
    (finding,) = told(repeating(hole, 2, other))
    assert finding.what == "stream s: 2 covered offsets have neither row nor dead letter"


def test_a_map_that_is_repeated_with_other_offsets_is_broken():
    first, then = (json.dumps({**SOURCE, "topic-id": "o", "next": {"0": n}}) for n in (5, 6))
    table = repeating(repeating(whole(), 2, first), 3, then)
    (finding,) = told(table)
    assert finding.kind is Kind.OFFSETS_BROKEN
    assert finding.what == (
        "stream other, snapshot 3: it repeats the map, which is {0: 6} and was {0: 5} before"
    )


@pytest.mark.parametrize("turned", [False, True])
def test_of_two_tagged_snapshots_with_maps_of_a_stream_the_newer_one_counts(turned: bool):
    """The history is cut behind both."""
    table = whole(4)
    refs = {f"tarn-offsets-{name}": {"snapshot-id": n, "type": "tag"} for name, n in (("other", 1), ("s", 3))}
    snapshots = [dict(one) for one in table.metadata["snapshots"]]
    snapshots[3] = {**snapshots[3], "parent-snapshot-id": 99, "summary": {"operation": "append"}}
    order = dict(reversed(refs.items())) if turned else refs
    named = {"main": table.metadata["refs"]["main"], **order}
    (stand,) = stands(replace(table, metadata={**table.metadata, "snapshots": snapshots, "refs": named}))
    assert dict(stand.map.next) == {0: 15}


def letters(table: Table, *names: str, sequence: int = 2) -> Table:
    files = [[f"s3://tarn/warehouse/ops/dead-u2/data/{name}", 1, 9, sequence] for name in names]
    return with_map(table, 2, offsets(p0=10), **{"tarn.dead-letters.s": json.dumps(files)})


def home(marker: int | None, *names: str, rows: int = 1, expected: int | None = None) -> Table:
    table = whole(1)
    root = "s3://tarn/warehouse/ops/dead-u2"
    table.metadata.update({"table-uuid": "u2", "location": root})
    table.metadata["snapshots"][0]["summary"] = {"operation": "append"}
    if marker is not None:
        table.metadata["snapshots"][0]["summary"]["tarn.dead-letters-registered"] = json.dumps(
            {"s": ["u1", marker]}
        )
    if expected is not None:
        table.metadata["snapshots"][0]["summary"]["tarn.dead-letters-records"] = str(expected)
    files = tuple(FileEntry(f"{root}/data/{name}", 9, rows, snapshot_id=1) for name in names)
    return replace(table, manifests={f"{META}/1-m0.avro": files})


@pytest.mark.parametrize(
    ("marker", "there", "kind"),
    [
        (2, ("a", "b"), None),
        (2, ("a",), Kind.LETTERS_UNREGISTERED),
        (1, ("a",), Kind.LETTERS_WAITING),
        (None, (), Kind.LETTERS_WAITING),
    ],
)
def test_dead_letters_are_registered_wait_or_are_lost(
    marker: int | None, there: tuple[str, ...], kind: Kind | None
):
    facts = [letter_facts(letters(whole(2), "a", "b")), letter_facts(home(marker, *there))]
    found = list(judge_letters(facts[0], facts, lambda _: 9))
    assert [f.kind for f in found] == ([] if kind is None else [kind])
    assert len(list(letters_needed(facts))) == 2


def test_dead_letters_without_any_table_are_lost():
    facts = letter_facts(letters(whole(2), "a"))
    (finding,) = judge_letters(facts, [facts], lambda _: 9)
    assert finding.kind is Kind.LETTERS_UNREGISTERED


@pytest.mark.parametrize(
    ("marker", "rows", "expected", "kind"),
    [
        (2, 2, 2, None),
        (2, 3, 2, None),
        (2, 1, 2, Kind.LETTERS_UNREGISTERED),
        (2, 1, 0, None),
        (2, 2, None, Kind.LETTERS_UNREGISTERED),
        (1, 2, 2, Kind.LETTERS),
    ],
)
def test_dead_letter_files_that_were_merged_are_no_loss_if_all_rows_are_there(
    marker: int, rows: int, expected: int | None, kind: Kind | None
):
    """The merged file is there, those that it replaced are gone from the store."""
    facts = [
        letter_facts(letters(whole(2), "a", "b")),
        letter_facts(home(marker, "merged", rows=rows, expected=expected)),
    ]
    found = list(judge_letters(facts[0], facts, lambda _: None))
    assert {f.kind for f in found if f.damage} == (set() if kind is None else {kind})
    needed = [] if kind is None else [letter.path for letter in facts[0].named]
    assert list(letters_needed(facts)) == needed


@pytest.mark.parametrize(("size", "says"), [(None, "1 missing"), (8, "a (8 bytes)")])
def test_a_dead_letter_file_that_is_needed_has_the_size_that_is_stated(size: int | None, says: str):
    facts = [letter_facts(letters(whole(2), "a", "b")), letter_facts(home(2, "a", "b"))]
    (finding,) = judge_letters(facts[0], facts, lambda path: size if path.endswith("/a") else 9)
    assert finding.kind is Kind.LETTERS
    assert says in finding.what


@pytest.mark.parametrize(
    ("summaries", "rows"),
    [
        ([], None),
        ([{"operation": "append"}], None),
        ([{"operation": "append", "tarn.dead-letters-records": "7"}], 7),
        ([{"operation": "replace"}, {"tarn.dead-letters-records": "7"}], 7),
        ([{"operation": "delete"}, {"tarn.dead-letters-records": "7"}], 0),
        ([{"operation": "overwrite"}, {"tarn.dead-letters-records": "7"}], 0),
        ([{"operation": "delete"}, {"operation": "append"}], None),
        ([{"tarn.dead-letters-records": "9"}, {"operation": "delete"}], 9),
        ([{"tarn.dead-letters-records": "many"}, {"tarn.dead-letters-records": "7"}], 7),
        ([{"tarn.dead-letters-records": "9" * 18}], 10**18 - 1),
        ([{"tarn.dead-letters-records": "9" * 19}, {"tarn.dead-letters-records": "7"}], 7),
        ([{"tarn.dead-letters-records": "9" * 5_000}], None),
    ],
)
def test_the_dead_letter_table_has_what_was_registered_unless_somebody_deleted(
    summaries: list[dict[str, str]], rows: int | None
):
    assert rows_expected(summaries) == rows


def test_notes_are_no_damage_and_everything_else_is():
    for kind in Kind:
        finding = Finding(kind=kind, where="x", what="y", fix="z")
        assert finding.damage is (kind not in NOTES)


def test_pointers_are_put_in_place_last():
    keys = [
        "catalog/v1/pointers/a/b.json",
        "catalog/v1/transactions/t.json",
        "catalog/v1/namespaces/a.json",
        "catalog/v1/keys/u/k.json",
        "catalog/v1/claims/u.json",
    ]
    order = [key.split("/")[2] for key in keys_to_copy(keys)]
    assert order[-2:] == ["transactions", "pointers"]
    assert set(order[:2]) == {"claims", "keys"}


@pytest.mark.long
def test_a_live_file_takes_less_memory_than_the_documents_say() -> None:
    """docs/operations.md: about 0.6 kB."""
    tracemalloc.start()
    held = [
        FileEntry(
            path=f"{ROOT}/data/{number:032x}.parquet",
            bytes=100_000 + number,
            records=10_000 + number,
            snapshot_id=2**60 + number,
            bounds=Bounds(0, 1_000 + number, 2**40 + number, 2**41 + number),
        )
        for number in range(10_000)
    ]
    size = tracemalloc.get_traced_memory()[0] / len(held)
    tracemalloc.stop()
    assert 300 < size < 650, size
