"""Rows are decoded in a room that all tables share, so that large writes to many of them fit into memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tarn.core import small_files
from tarn.gateway import tables
from tarn.gateway.merges import DECODED_FACTOR
from tarn.gateway.room import Room
from tests.contract.gateway.test_inbox import inbox, lake_with_table, settle, write
from tests.support.gateway import NAME, World, row


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
        thread.join(20)
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
    assert entered.wait(10)
    thread.join(10)


def test_writes_and_their_repeats_are_decoded_in_the_room() -> None:
    lake = lake_with_table()
    room = Watched()
    box = inbox(lake)
    box._room = room
    one = write(1, 2)
    for _ in range(2):
        answer = box.submit(one)
        settle(box)
        assert answer.result(0).accepted == 2
    assert room.sizes == [one.bytes, one.bytes]
    assert room._held == 0


def test_a_gateways_tables_and_merges_have_one_room(world: World) -> None:
    gateway = world.gateway()
    assert world.post(gateway, [row(1)]).status_code == 200
    box = gateway.tables.inbox(NAME)
    assert box.merges is not None
    assert box._room is box.merges._room is gateway.tables._room


def test_merges_are_made_in_the_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "EVERY_S", 0.0)
    monkeypatch.setattr(tables, "MERGE_LOOK_S", 3_600.0)
    gateway = world.gateway()
    for number in range(small_files.FIRST_LEVEL_MIN):
        assert world.post(gateway, [row(number)]).status_code == 200
    merges = gateway.tables.inbox(NAME).merges
    assert merges is not None
    room = merges._room = Watched(1 << 30)
    (held,) = merges._small._held.values()
    size = sum(file.bytes for file in held)
    assert merges.run_once()
    assert room.sizes == [DECODED_FACTOR * size]
