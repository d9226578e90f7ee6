"""Health of the service stream: who stands still is named, whichever topic he reads."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.errors import KafkaTimeoutError

from tarn.core.errors import UnavailableError
from tarn_demo.stream import service as service_module
from tarn_demo.stream.kafka_topics import Source
from tarn_demo.stream.progress import ASSIGNED_WITHIN_S, SILENT_S_MAX, STANDING_S_MAX, Progress
from tarn_demo.stream.service import Service
from tarn_demo.stream.settings import Settings
from tarn_demo.stream.tasks import Place
from tarn_demo.stream.topics import EVENTS, PARTIALS

EVENT, PART = Place(EVENTS, 1), Place(PARTIALS, 0)


def seen(progress: Progress, now_s: float, positions: dict[Place, int], ends: dict[Place, int]) -> list[str]:
    progress.saw(now_s, positions, ends, assigned=True)
    return progress.faults(now_s)


@pytest.mark.parametrize("place", [EVENT, PART], ids=["a partition of events", "the merge"])
def test_who_stands_while_the_log_goes_on_is_named(place: Place) -> None:
    progress = Progress(0.0)
    assert seen(progress, 1.0, {place: 5}, {place: 9}) == []
    assert seen(progress, 1.0 + STANDING_S_MAX, {place: 5}, {place: 20}) == []
    (said,) = seen(progress, 2.0 + STANDING_S_MAX, {place: 5}, {place: 20})
    assert said == f"{place.topic}, partition {place.partition}: stands at offset 5 for 61 s"
    assert progress.standing(2.0 + STANDING_S_MAX, times=3) == []
    assert seen(progress, 3.0 + STANDING_S_MAX, {place: 6}, {place: 20}) == [], "it went on"


def test_who_has_read_all_may_stand_for_ever() -> None:
    progress = Progress(0.0)
    for now_s in (1.0, 1_000.0):
        assert seen(progress, now_s, {EVENT: 9, PART: 3}, {EVENT: 9, PART: 3, Place(EVENTS, 7): 50}) == []


@pytest.mark.parametrize("place", [EVENT, PART], ids=["a partition of events", "the merge"])
def test_who_is_ahead_of_a_log_twice_in_a_row_is_named(place: Place) -> None:
    progress = Progress(0.0)
    assert seen(progress, 1.0, {place: 9}, {place: 9, Place(EVENTS, 7): 1}) == []
    assert seen(progress, 2.0, {place: 9}, {place: 4}) == []
    assert progress.lost() == [], "the broker may have just started"
    progress.saw(3.0, {place: 9}, {place: 9}, assigned=True)
    progress.saw(4.0, {place: 9}, {place: 5}, assigned=True)
    assert progress.lost() == []
    progress.saw(5.0, {place: 9}, {place: 6}, assigned=True)
    assert progress.lost() == [
        f"{place.topic}, partition {place.partition}: offset 9 comes next, and the log ends at 6: the topic "
        "was made again, or has lost messages"
    ]
    progress.saw(6.0, {place: 9}, {}, assigned=True)
    assert progress.lost() == []


def test_silence_and_a_group_that_gives_nothing_are_named() -> None:
    progress = Progress(0.0)
    assert progress.faults(SILENT_S_MAX) == []
    assert progress.faults(SILENT_S_MAX + 1) == ["Kafka has not answered for 16 s"]
    progress.saw(ASSIGNED_WITHIN_S + 1, {}, {}, assigned=False)
    assert progress.faults(ASSIGNED_WITHIN_S + 1) == ["no partitions were assigned within 91 s"]
    progress.saw(ASSIGNED_WITHIN_S + 2, {}, {}, assigned=True)
    assert progress.faults(ASSIGNED_WITHIN_S + 2) == []


def test_the_service_does_not_go_on_without_what_follows_beside_its_steps() -> None:
    async def breaks() -> None:
        raise ZeroDivisionError

    async def waits() -> None:
        await asyncio.sleep(60)

    async def run() -> tuple[bool, BaseException]:
        service = Service(Settings(kafka_bootstrap="none:1"), {})
        service._failure = asyncio.get_running_loop().create_future()
        stopped = asyncio.create_task(waits())
        stopped.add_done_callback(service._ended)
        await asyncio.sleep(0)
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
        quiet = not service._failure.done()
        asyncio.create_task(breaks()).add_done_callback(service._ended)
        return quiet, await asyncio.wait_for(service._failure, 5)

    quiet, reason = asyncio.run(run())
    assert quiet, "one that is asked to stop is no failure"
    assert isinstance(reason, ZeroDivisionError)


def looks(
    monkeypatch: pytest.MonkeyPatch, position: int, identities: list[str], *, there: bool = True
) -> tuple[str, int]:
    """What a service ends with that made its windows by "one", and how often it looked at the ends, at 4.

    Unless all partitions are `there`, Kafka has no ends of them. An empty identity is none yet.
    """
    monkeypatch.setattr(service_module, "LOOK_EVERY_S", 0.01)
    asked: list[list[Place]] = []

    async def found(_service: Service) -> Source:
        if not (identity := identities.pop(0)):
            raise UnavailableError("there is no such topic")
        return Source(partitions=2, identity=identity)

    async def ends(places: list[Place]) -> dict[tuple[str, int], int]:
        asked.append(places)
        if len(asked) > 50:
            raise ZeroDivisionError
        if not there:
            raise KafkaTimeoutError
        return {tuple(place): 4 for place in places}

    async def run() -> BaseException:
        service = Service(Settings(kafka_bootstrap="none:1"), {})
        service._failure = asyncio.get_running_loop().create_future()
        service._tasks = cast("Any", SimpleNamespace(positions=lambda: {EVENT: position}, assignments=1))
        reader = cast("Any", SimpleNamespace(ends=ends))
        look = asyncio.create_task(service._look(reader, Source(partitions=2, identity="one")))
        look.add_done_callback(service._ended)
        try:
            return await asyncio.wait_for(service._failure, 20)
        finally:
            look.cancel()

    monkeypatch.setattr(Service, "_found", found)
    reason = asyncio.run(run())
    assert all(places == [PART, Place(EVENTS, 0), EVENT] for places in asked)
    return f"{type(reason).__name__}: {reason}", len(asked)


def test_the_service_begins_again_where_a_log_was_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said, looked = looks(monkeypatch, 9, ["one"])
    assert said.startswith("UnavailableError: ")
    assert "offset 9 comes next, and the log ends at 4" in said
    assert looked == 2


@pytest.mark.parametrize("there", [True, False])
def test_the_service_begins_again_with_the_topic_that_was_assigned(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """It may have fewer partitions, and Kafka then never says where the others end."""
    said, looked = looks(monkeypatch, 0, ["", "other"], there=there)
    assert said == (
        f"UnavailableError: topic {EVENTS} was made again, or has other partitions; the service starts again"
    )
    assert looked <= 2


def test_a_log_that_was_made_again_is_noticed_while_the_topic_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, looked = looks(monkeypatch, 9, [""] * 9)
    assert "offset 9 comes next, and the log ends at 4" in said
    assert looked == 2


@pytest.mark.long
def test_a_topic_is_looked_at_once_for_each_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = looks(monkeypatch, 0, ["one"])
    assert said.startswith("ZeroDivisionError"), "it went on looking at the ends"
