"""Rows are decoded in a room that all tables share, so that large writes to many of them fit into memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tarn.core import small_files
from tarn.core.errors import UnavailableError
from tarn.gateway import tables
from tarn.gateway.repeats import REASON_GONE
from tarn.gateway.room import ROOM_BYTES_MAX, NoRoomError, Room
from tarn.gateway.writes import Write
from tests.contract.gateway.test_inbox import inbox, lake_with_table, row, settle, write
from tests.support.gateway import NAME, World
from tests.support.gateway import row as sent

WITHIN_S = 60.0


class Watched(Room):
    """A room that remembers how much was held at one time, and what."""

    def __init__(self, bytes_max: int = 1 << 20) -> None:
        super().__init__(bytes_max)
        self.most = 0
        self.sizes: list[int] = []

    @contextmanager
    def hold(self, size_bytes: int) -> Iterator[None]:
        with super().hold(size_bytes):
            self.sizes.append(size_bytes)
            self.most = max(self.most, self._held)
            yield


def test_no_more_is_held_at_one_time_and_nobody_waits_for_ever() -> None:
    room = Watched(10)
    inside: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    def work(size: int) -> None:
        for _ in range(20):
            with room.hold(size):
                with lock:
                    inside.append(size)
                    most.append(sum(min(one, 10) for one in inside))
                with lock:
                    inside.remove(size)

    threads = [threading.Thread(target=work, args=(size,)) for size in (3, 4, 6, 10, 50, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert not any(thread.is_alive() for thread in threads)
    assert max(most) <= 10
    assert len(room.sizes) == 120


def test_what_is_larger_than_the_room_is_alone_in_it() -> None:
    room = Room(10)
    entered = threading.Event()

    def small() -> None:
        with room.hold(1):
            entered.set()

    with room.hold(11):
        thread = threading.Thread(target=small)
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(WITHIN_S)
    thread.join(WITHIN_S)


def waits(room: Room, size: int, order: list[int], go: threading.Event) -> threading.Thread:
    """A thread that waits for room already, or has waited in vain."""
    before = len(room._queue)

    def work() -> None:
        try:
            with room.hold(size):
                order.append(size)
                go.wait(WITHIN_S)
        except NoRoomError:
            order.append(-size)

    thread = threading.Thread(target=work)
    thread.start()
    until_s = time.monotonic() + WITHIN_S
    while len(room._queue) == before and thread.is_alive():
        assert time.monotonic() < until_s
        time.sleep(0.005)
    return thread


def test_a_large_one_is_not_passed_by_small_ones_for_ever() -> None:
    room, go = Room(10), threading.Event()
    order: list[int] = []
    go.set()
    with room.hold(6):
        threads = [waits(room, size, order, go) for size in (10, 4, 3)]
        assert order == [], "the room has place for 4, but 10 came first"
    for thread in threads:
        thread.join(WITHIN_S)
    assert order[0] == 10
    assert sorted(order[1:]) == [3, 4]


def test_who_finds_no_room_in_time_hears_it_and_those_behind_go_on() -> None:
    room, go = Room(10, wait_s_max=0.3), threading.Event()
    order: list[int] = []
    go.set()
    with room.hold(6):
        words = "6 bytes of rows are being decoded.*10 more within 0.3 s"
        began_s = time.monotonic()
        with pytest.raises(NoRoomError, match=words), room.hold(10):
            pass
        assert time.monotonic() - began_s < WITHIN_S
        threads = [waits(room, 10, order, go)]
        until_s = time.monotonic() + WITHIN_S
        while room._queue:
            assert time.monotonic() < until_s
            time.sleep(0.005)
        with room.hold(4):
            order.append(4)
    threads[0].join(WITHIN_S)
    assert order == [-10, 4]
    assert room._held == 0


def test_a_write_without_room_is_taken_again_by_nobody_but_its_client() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    box._room = Room(10, wait_s_max=0.05)
    with box._room.hold(10):
        answer = box.submit(write(1))
        settle(box)
    with pytest.raises(UnavailableError, match="Nothing of them was written"):
        answer.result(0)
    again = box.submit(write(1))
    settle(box)
    assert again.result(0).accepted == 1


def test_a_repeat_without_room_has_its_answer_all_the_same() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    bad = Write(values=[b"{}", b"[]"], at_ms=0, producer="p")
    first = box.submit(bad)
    settle(box)
    box._room = Room(10, wait_s_max=0.05)
    with box._room.hold(10):
        again = box.submit(bad)
        settle(box)
    assert (again.result(0).accepted, again.result(0).rejected) == (0, {0: REASON_GONE, 1: REASON_GONE})
    assert list(first.result(0).rejected or ()) == [0, 1]


def test_writes_and_their_repeats_are_decoded_in_the_room() -> None:
    lake = lake_with_table()
    room = Watched()
    box = inbox(lake)
    box._room = room
    one = write(1, 2)
    bad = Write(values=[row(3), b"{}"], at_ms=0, producer="q")
    for _ in range(2):
        for each, accepted in ((one, 2), (bad, 1)):
            answer = box.submit(each)
            settle(box)
            assert answer.result(0).accepted == accepted
    assert room.sizes == [one.bytes, bad.bytes, 2], "of a repeat the rows that were rejected"
    assert room._held == 0


def test_a_gateways_tables_have_one_room_and_merges_never_wait_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_files, "EVERY_S", 0.0)
    monkeypatch.setattr(tables, "MERGE_LOOK_S", 3_600.0)
    gateway = world.gateway()
    for number in range(small_files.FIRST_LEVEL_MIN):
        assert world.post(gateway, [sent(number)]).status_code == 200
    box = gateway.tables.inbox(NAME)
    assert box._room is gateway.tables._room
    assert box.merges is not None
    with box._room.hold(ROOM_BYTES_MAX):
        assert box.merges.run_once(), "rows that are decoded meanwhile would wait for the whole merge"
