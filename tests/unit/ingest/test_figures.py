"""Which of several figures of a table are the newest ones."""

from __future__ import annotations

from dataclasses import replace

from tarn.ingest.figures import TableFigures, newest, same_version

BASE = TableFigures(
    uuid="u",
    format_version=2,
    rows=1,
    files=1,
    delete_files=0,
    bytes=1,
    snapshots=1,
    manifests=None,
    metadata_bytes=None,
    snapshot_id=1,
    commit_at_ms=1,
    sequence=5,
    updated_ms=1_000,
)


def first(*found: TableFigures | None) -> TableFigures | None:
    """The newest of them, in whatever order they come."""
    assert newest(*found) == newest(*reversed(found))
    return newest(*found)


def test_a_later_snapshot_is_newer_also_if_its_writer_has_a_slow_clock() -> None:
    later = replace(BASE, sequence=6)
    assert first(BASE, later) == later
    assert first(BASE, None, replace(later, updated_ms=900)) == replace(later, updated_ms=900)


def test_a_rollback_is_newer_than_what_it_rolled_back() -> None:
    rolled_back = replace(BASE, rows=0, updated_ms=1_001)
    assert first(BASE, rolled_back) == rolled_back


def test_a_table_that_was_recreated_is_newer_than_the_former_one() -> None:
    again = replace(BASE, uuid="v", sequence=1, updated_ms=1_001)
    assert first(BASE, replace(BASE, sequence=7), again) == again


def test_of_one_version_those_that_know_the_manifests_are_taken() -> None:
    whole = replace(BASE, manifests=3, metadata_bytes=9)
    assert first(BASE, whole) == whole
    assert same_version(BASE, whole)
    assert not same_version(BASE, replace(BASE, sequence=6))
    assert not same_version(BASE, replace(BASE, uuid="v"))


def test_nothing_is_known_of_nothing() -> None:
    assert newest() is None
    assert newest(None, None) is None
