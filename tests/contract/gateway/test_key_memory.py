"""The memory of idempotency keys: what is in the store decides, and what is unreadable stops writes."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tarn.core.errors import CorruptStateError, UnavailableError
from tarn.core.producers import ProducerBook
from tarn.core.quota import Used
from tarn.core.rejected_rows import RUNS_MAX
from tarn.core.write_keys import NEEDED_MS, KeyedWrite, KeyEntry, KeyIndex
from tarn.gateway.key_memory import KeyMemory

ROOT = "s3://tarn/warehouse/t"
NOW_MS = 1_800_000_000_000


class Files(dict[str, bytes]):
    def find(self, location: str) -> bytes | None:
        return self.get(location)

    def written_ms(self, location: str) -> int | None:
        return None

    def write_new(self, location: str, data: bytes) -> None:
        assert location not in self
        self[location] = data


def memory(files: Files, names: list[int] | None = None) -> KeyMemory:
    counter = names if names is not None else [0]

    def new_name() -> str:
        counter[0] += 1
        return f"{counter[0]:04}"

    return KeyMemory(files, new_name=new_name, now_ms=lambda: NOW_MS, inline_max=3)


def key(number: int) -> KeyedWrite:
    return KeyedWrite.of("c-1", f"k-{number}", b"{}")


def test_a_draft_on_another_base_is_not_followed() -> None:
    files, names = Files(), [0]
    mine, other = memory(files, names), memory(files, names)
    draft, foreign = mine.draft(None, ROOT, [key(1)]), other.draft(None, ROOT, [key(2)])
    mine.load(foreign)
    assert not mine.follow(draft)
    assert mine.entry == foreign
    assert (mine.find(key(1).key), mine.find(key(2).key) is not None) == (None, True)
    with pytest.raises(UnavailableError, match="have changed meanwhile"):
        mine.draft(None, ROOT, [key(3)])


def test_keys_are_remembered_once_their_entry_is_seen() -> None:
    files = Files()
    mine = memory(files)
    first = mine.draft(None, ROOT, [key(1)])
    second = mine.draft(first, ROOT, [key(2)])
    assert (mine.find(key(1).key), len(mine)) == (None, 0)
    assert mine.follow(first)
    mine.discard(first)
    assert mine.find(key(1).key) is not None
    assert mine.find(key(2).key) is None
    assert mine.follow(second)
    assert mine.find(key(2).key) is not None
    again = memory(files)
    again.load(second)
    assert len(again) == 2


def test_rejected_rows_are_known_to_whoever_reads_the_objects() -> None:
    files, names = Files(), [0]
    mine = memory(files, names)
    rejected = {
        key(1).key: ((0, 2), (5, 6)),
        key(2).key: tuple((2 * n, 2 * n + 1) for n in range(RUNS_MAX + 1)),
    }
    entry = mine.draft(None, ROOT, [key(1), key(2), key(3)], rejected)
    for number in range(4, 9):  # the first ones are in a segment by now
        assert mine.follow(entry)
        entry = mine.draft(entry, ROOT, [key(number)])
    assert mine.follow(entry)
    again = memory(files, names)
    again.load(entry)
    for one in (mine, again):
        found = [one.find(key(number).key) for number in (1, 2, 3, 4)]
        assert [each and each.rejected for each in found] == [((0, 2), (5, 6)), None, (), ()]


def test_runs_of_rejected_rows_are_bounded_for_all_keys_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarn.gateway.key_memory.RUNS_KEPT_MAX", 3)
    files, names = Files(), [0]
    mine = memory(files, names)
    two = ((0, 1), (2, 3))
    entry = mine.draft(None, ROOT, [key(1), key(2)], {key(1).key: two, key(2).key: two})
    assert mine.follow(entry)
    second = mine.draft(entry, ROOT, [key(3)], {key(3).key: two})
    assert mine.follow(second)
    third = mine.draft(second, ROOT, [key(4)], {key(4).key: ((7, 8),)})
    assert mine.follow(third)
    found = [mine.find(key(number).key) for number in (1, 2, 3, 4)]
    assert [one and one.rejected for one in found] == [two, None, None, ((7, 8),)]
    monkeypatch.setattr("tarn.gateway.key_memory.RUNS_KEPT_MAX", 2)
    again = memory(files, names)
    again.load(third)
    kept = [again.find(key(number).key) for number in (1, 2, 3, 4)]
    assert sum(len(one.rejected or ()) for one in kept if one) <= 2
    assert all(one is not None for one in kept), "the keys themselves are known"


def test_of_a_write_without_rejected_rows_that_is_always_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarn.gateway.key_memory.RUNS_KEPT_MAX", 3)
    mine, two = memory(Files()), ((0, 1), (2, 3))
    first = mine.draft(None, ROOT, [key(1)], {key(1).key: two})
    second = mine.draft(first, ROOT, [key(2)], {key(2).key: two})  # before the first is in the table
    assert mine.follow(first)
    assert mine.follow(second)
    assert mine.follow(mine.draft(second, ROOT, [key(3), key(4)], {key(3).key: ((0, 1),)}))
    assert [getattr(mine.find(key(number).key), "rejected", 0) for number in (3, 4)] == [None, ()]


def test_objects_from_before_rejected_rows_were_kept_say_nothing_of_them() -> None:
    text = b'{"v":1,"keys":[["a","d",5]],"segments":[]}'
    found = KeyIndex.from_json(text, path="p")
    assert found.keys["a"].rejected is None
    assert KeyIndex.from_json(found.to_json(), path="p") == found, "and go on saying nothing"


@pytest.mark.parametrize("text", ["", "{}", '{"v":2,"path":"p","at-ms":1}', '{"v":1,"path":"p"}', "[]"])
def test_an_entry_that_cannot_be_read_is_damage(text: str) -> None:
    with pytest.raises(CorruptStateError):
        KeyEntry.from_json(text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"v":1,"keys":[["a"]],"segments":[]}',
        b'{"v":1,"keys":{}}',
        b'{"v":2,"keys":[["a","d",1,[1]]],"segments":[]}',
    ],
)
def test_an_object_that_cannot_be_read_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match="restore it from a backup"):
        KeyIndex.from_json(data, path="p")


def test_the_count_of_the_day_is_kept_with_the_producers() -> None:
    book = ProducerBook(used=Used(day=3, rows=4, bytes=5))
    assert ProducerBook.from_json(book.to_json()) == book
    assert book.used.plus(3, 1, 1) == Used(day=3, rows=5, bytes=6)
    assert book.used.plus(4, 1, 1) == Used(day=4, rows=1, bytes=1)
    assert book.used.plus(2, 1, 1) == Used(day=3, rows=5, bytes=6)


@pytest.mark.parametrize("gone", ["index", "segment"])
def test_objects_that_the_reaper_deleted_after_a_clock_was_ahead_count_as_none(gone: str) -> None:
    """Their age is the store's; the times in them are of a gateway whose clock was two hours ahead."""
    files, names = Files(), [0]
    at_ms = [NOW_MS + 7_200_000]

    def new_name() -> str:
        names[0] += 1
        return f"{names[0]:04}"

    def opened() -> KeyMemory:
        return KeyMemory(files, new_name=new_name, now_ms=lambda: at_ms[0], inline_max=3)

    ahead = opened()
    entry = None
    for number in range(5):
        entry = ahead.draft(entry, ROOT, [key(number)])
        assert ahead.follow(entry)
    for path in list(files):
        if (".segment." in path) == (gone == "segment"):
            del files[path]
    at_ms[0] = NOW_MS
    mine = opened()
    mine.load(entry)
    assert len(mine) == (0 if gone == "index" else 1)
    following = mine.draft(entry, ROOT, [key(9)])
    assert mine.follow(following)
    again = opened()
    again.load(following)
    assert again.find(key(9).key) is not None


MINUTE_MS = 60_000


class Clocked(Files):
    """A store with a clock, whose reaper deletes objects by their age."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW_MS
        self._since: dict[str, int] = {}

    def written_ms(self, location: str) -> int | None:
        return self._since.get(location)

    def write_new(self, location: str, data: bytes) -> None:
        super().write_new(location, data)
        self._since[location] = self.now_ms

    def reap(self) -> None:
        for path in [one for one in self if self._since[one] <= self.now_ms - NEEDED_MS]:
            del self[path], self._since[path]


class Table:
    """A table with keys, of which a gateway's clock was ahead at first. Manifest lists stay."""

    def __init__(self, ahead_ms: int) -> None:
        self.files, self._names, self._ahead_ms = Clocked(), [0], ahead_ms
        self.gateway = self.opened()
        self.entry: KeyEntry | None = None
        self.named_by = ""

    def opened(self) -> KeyMemory:
        def new_name() -> str:
            self._names[0] += 1
            return f"{self._names[0]:04}"

        def now_ms() -> int:
            return self.files.now_ms + self._ahead_ms

        return KeyMemory(self.files, new_name=new_name, now_ms=now_ms, inline_max=3)

    def set_right(self) -> None:
        self._ahead_ms = 0

    def write(self, number: int) -> None:
        self.entry = self.gateway.draft(self.entry, ROOT, [key(number)])
        assert self.gateway.follow(self.entry)
        self.gateway.discard(self.entry)
        self.named_by = f"snap-{number}"
        self.files._since[self.named_by] = self.files.now_ms

    def restarted(self) -> KeyMemory:
        found = self.opened()
        found.load(self.entry, named_by=self.named_by)
        return found


@pytest.mark.parametrize("ahead", [20, 120])
@pytest.mark.parametrize("by", ["the same process", "a new one"])
@pytest.mark.parametrize("every", [0, 1, 7])
def test_a_clock_that_was_ahead_shuts_no_table_at_any_later_time(ahead: int, by: str, every: int) -> None:
    """Written to every so many minutes since the clock is right, or never."""
    table = Table(ahead * MINUTE_MS)
    for number in range(5):
        table.write(number)
    table.set_right()
    if by == "a new one":
        table.gateway = table.restarted()
    for minute in range(1, ahead + 40):
        table.files.now_ms += MINUTE_MS
        table.files.reap()
        if every and minute % every == 0:
            table.write(100 + minute)
        found = table.restarted()
        if minute <= 15:
            assert all(found.find(key(number).key) for number in range(5)), minute
        recent = [one for one in range(max(1, minute - 15), minute + 1) if every and one % every == 0]
        assert all(found.find(key(100 + one).key) for one in recent), minute
        assert len(found) <= 30


def test_keys_of_a_clock_that_was_ahead_are_forgotten_as_others() -> None:
    table = Table(120 * MINUTE_MS)
    for number in range(5):
        table.write(number)
    table.set_right()
    table.gateway.forget_old()
    assert len(table.gateway) == 5
    table.files.now_ms += 17 * MINUTE_MS
    table.gateway.forget_old()
    assert len(table.gateway) == 0


@pytest.mark.parametrize("gone", ["index", "segment"])
def test_after_a_restore_a_table_is_shut_until_its_window_is_over(gone: str) -> None:
    """A backup has no keys; the manifest lists of its snapshots are as old as the restore."""
    table = Table(0)
    for number in range(5):
        table.write(number)
    for path in list(table.files):
        if (".segment." in path) == (gone == "segment"):
            del table.files[path]
    table.files.now_ms += 5 * MINUTE_MS
    table.files._since[table.named_by] = table.files.now_ms
    for minutes, left_s in ((0, 961), (11, 301)):
        table.files.now_ms += minutes * MINUTE_MS
        with pytest.raises(UnavailableError, match=rf"is not in the store: .* in {left_s} s; "):
            table.restarted()
    table.files.now_ms += MINUTE_MS + 1
    assert len(table.restarted()) == 0


def test_a_store_that_does_not_respond_is_no_object_that_is_gone() -> None:
    class Away(Files):
        def find(self, location: str) -> bytes | None:
            raise UnavailableError("the store does not respond")

    mine = memory(Away())
    with pytest.raises(UnavailableError, match="does not respond"):
        mine.load(KeyEntry(path=f"{ROOT}/metadata/write-keys-1.json", at_ms=NOW_MS + 7_200_000))


def test_what_is_older_than_the_window_takes_no_memory_without_a_reload() -> None:
    files, at = Files(), [1_800_000_000_000]
    names = iter(range(10_000))
    mine = KeyMemory(files, new_name=lambda: f"{next(names):05}", now_ms=lambda: at[0], inline_max=3)
    entry = None
    for number in range(400):
        at[0] += 30_000
        entry = mine.draft(entry, ROOT, [key(number)])
        assert mine.follow(entry)
        mine.discard(entry)
        young = range(max(0, number - 30), number + 1)
        assert all(mine.find(key(one).key) is not None for one in young)
    assert len(mine) < 40
    assert len(mine._segments) < 12


def test_a_key_takes_no_more_memory_than_the_docs_say() -> None:
    """docs/gateway.md, What does not work: less than 0.4 kB for each."""
    files, count = Files(), 20_000
    entry = memory(files).draft(None, ROOT, [key(number) for number in range(count)])
    mine = memory(files)
    tracemalloc.start()
    try:
        mine.load(entry)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(mine) == count
    assert taken / count < 400
