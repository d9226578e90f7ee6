"""What other streams' commits repeat of streams that commit nothing: which ones, when, and how much. Pure."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tarn.core.history import Retention
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX
from tarn.core.table_state import Append, TableState, build_commit, marker_property, restated_property
from tarn.ingest.silent_streams import CHARS_MAX, STREAMS_MAX, with_silent

START_MS = 1_795_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Table:
    """A table whose commits are applied by hand, at times that the test says."""

    def __init__(self, **properties: str) -> None:
        self.now_ms = START_MS
        self.state = TableState(
            {
                "format-version": 2,
                "table-uuid": "u",
                "location": "s3://tarn/t",
                "current-schema-id": 0,
                "snapshots": [],
                "refs": {},
                "properties": properties,
            }
        )

    def commit(self, stream: str, text: str = "map", *, after_ms: int = 60_000, **more: str) -> Append:
        """A commit of a stream, and what it says in all."""
        key = SUMMARY_PREFIX + stream
        append = Append.of(
            (),
            commit_id="c",
            summary={key: text, **more},
            tag=TAG_PREFIX + stream,
            since=marker_property(key),
        )
        return self.add(append, after_ms=after_ms)

    def add(self, append: Append, *, after_ms: int = 60_000) -> Append:
        self.now_ms += after_ms
        state = self.state
        whole = with_silent(state, append, now_ms=self.now_ms, retention=Retention())
        request = build_commit(
            state,
            whole,
            snapshot_id=state.last_sequence + 1,
            manifest_list="s3://tarn/m",
            added_rows=0,
            now_ms=self.now_ms,
            retention=Retention(),
        )
        meta: dict[str, Any] = {**state.metadata, "refs": dict(state.refs)}
        for one in request.updates:
            if one["action"] == "add-snapshot":
                meta["snapshots"] = [*meta["snapshots"], one["snapshot"]]
                meta["last-sequence-number"] = one["snapshot"]["sequence-number"]
            elif one["action"] == "set-snapshot-ref":
                meta["refs"][one["ref-name"]] = {"type": one["type"], "snapshot-id": one["snapshot-id"]}
            elif one["action"] == "remove-snapshots":
                meta["snapshots"] = [
                    s for s in meta["snapshots"] if s["snapshot-id"] not in one["snapshot-ids"]
                ]
        assert {ref["snapshot-id"] for ref in meta["refs"].values()} <= {
            s["snapshot-id"] for s in meta["snapshots"]
        }
        self.state = TableState(meta)
        return whole

    def says(self, stream: str, at: int | None = None) -> str | None:
        state = self.state if at is None else self.state.at(at)
        return state.newest(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream)

    def tagged(self, stream: str) -> int:
        return int(self.state.refs[TAG_PREFIX + stream]["snapshot-id"])


def repeated(append: Append) -> list[str]:
    prefix = restated_property(SUMMARY_PREFIX)
    return sorted(key.removeprefix(prefix) for key in append.summary if key.startswith(prefix))


@pytest.mark.long
def test_a_topic_a_day_keeps_no_snapshot_that_the_history_would_not() -> None:
    table = Table()
    for day in range(100):
        for _ in range(24):
            table.commit(f"logs.{day}", f"map of {day}", after_ms=HOUR_MS)
    kept = [s["timestamp-ms"] for s in table.state.metadata["snapshots"]]
    assert len(kept) <= 80 + 100 // STREAMS_MAX + 1
    assert table.now_ms - min(kept) < 6 * DAY_MS, "no longer than eighty commits and a little more"
    assert [table.says(f"logs.{day}") for day in range(100)] == [f"map of {day}" for day in range(100)]


@pytest.mark.parametrize(
    ("properties", "silent_ms"),
    [
        ({"tarn.history": "1"}, HOUR_MS),
        ({"tarn.history": "1, 30s for 15m"}, HOUR_MS),
        ({"tarn.history": "1, 1h for 2d"}, 2 * DAY_MS),
        ({"tarn.snapshots-kept": "2"}, HOUR_MS),
    ],
)
def test_a_stream_is_silent_once_the_history_does_not_reach_back_to_it(
    properties: dict[str, str], silent_ms: int
) -> None:
    table = Table(**properties)
    table.commit("s")
    silent_since = table.now_ms
    for _ in range(3):
        table.commit("busy")
    table.commit("busy", after_ms=silent_since + silent_ms - 1 - table.now_ms)
    assert table.tagged("s") == 1
    assert repeated(table.commit("busy", after_ms=1)) == ["s"]


def test_what_the_history_or_another_ref_keeps_anyway_is_left_as_it_is() -> None:
    table = Table()
    table.commit("s")
    for _ in range(40):
        assert repeated(table.commit("busy", after_ms=DAY_MS)) == [], "one of the newest eighty"
    held = Table(**{"tarn.history": "1"})
    held.commit("s")
    held.state = TableState(
        {**held.state.metadata, "refs": {**held.state.refs, "mine": {"type": "tag", "snapshot-id": 1}}}
    )
    for _ in range(3):
        assert repeated(held.commit("busy", after_ms=DAY_MS)) == []


def test_only_commits_of_streams_repeat_what_others_stated() -> None:
    table = Table(**{"tarn.history": "1"})
    table.commit("s")
    replay = Append.of((), commit_id="r", summary={"tarn.dead-letters-replayed.busy": "3"})
    for _ in range(3):
        assert table.add(replay, after_ms=DAY_MS) is replay
    assert repeated(table.commit("busy")) == ["s"]


def test_all_that_a_stream_stated_is_repeated_and_nothing_of_others_whose_names_end_alike() -> None:
    table = Table(**{"tarn.history": "1"})
    kinds = ("dead-letters", "watermark", "open-partitions", "retired", "write-keys")
    own = {f"tarn.{kind}.s": f"{kind} of s" for kind in kinds}
    table.commit("s", "map of s", **own, **{"tarn.offsets.a.s": "map of a.s", "tarn.retired.a.s": "of a.s"})
    table.commit("busy")
    found = table.commit("busy", after_ms=DAY_MS)
    assert found.summary == {
        "tarn.offsets.busy": "map",
        "tarn.offsets.s": "map of s",
        **own,
        "tarn.restated.s": "1",
    }
    assert found.tags == ("tarn-offsets-busy", "tarn-offsets-s")


def test_the_summary_has_room_for_some_or_for_one_that_states_much() -> None:
    table = Table(**{"tarn.history": "1"})
    sizes = {"a": CHARS_MAX // 2, "b": CHARS_MAX // 2, "c": 2 * CHARS_MAX, "d": 9, "e": 9}
    for name, chars in sizes.items():
        table.commit(name, "x" * chars)
    table.commit("busy")
    made = [repeated(table.commit("busy", after_ms=at)) for at in (DAY_MS, 1, 1, 1, 1)]
    assert made == [["a"], ["b"], ["c"], ["d", "e"], []]


def test_a_repeated_statement_holds_from_its_first_time_on() -> None:
    table = Table(**{"tarn.history": "1, 1m for 1h"})
    table.commit("s", "first")
    for _ in range(90):
        table.commit("busy", after_ms=61_000)
    moved = table.tagged("s")
    assert moved > 1
    before = [s["snapshot-id"] for s in table.state.metadata["snapshots"] if s["snapshot-id"] < moved]
    assert len(before) > 10
    assert {table.says("s", at) for at in before} == {"first"}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_each_kept_version_says_of_silent_streams_what_it_said_when_it_was_the_newest(seed: int) -> None:
    """Streams that commit at random times and fall silent, for hours or weeks."""
    chance = random.Random(seed)
    table = Table(**chance.choice(({}, {"tarn.history": "5, 1m for 1h, 1h for 1d"}, {"tarn.history": "2"})))
    names = [f"s{n}" for n in range(12)]
    said: dict[int, dict[str, str]] = {}
    own: dict[str, int] = {}
    now: dict[str, str] = {}
    for number in range(600):
        name = chance.choice(names[min(10, number // 50) :])
        now = {**now, name: f"{name}: {number}"}
        table.commit(name, now[name], after_ms=chance.choice((1_000, 60_000, HOUR_MS, 5 * HOUR_MS)))
        own[name] = table.state.head_id or 0
        said[own[name]] = now
        assert {one: table.says(one) for one in now} == now
        if number % 25 == 0:
            for version in (s["snapshot-id"] for s in table.state.metadata["snapshots"]):
                silent = [one for one, last in own.items() if last <= version]
                assert {s: table.says(s, version) for s in silent} == {s: said[version][s] for s in silent}
    ages = [table.now_ms - table.state.snapshot(table.tagged(name))["timestamp-ms"] for name in own]
    assert max(ages) < 8 * DAY_MS
