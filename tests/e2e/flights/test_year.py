"""A year of real flights through the whole stack: the lake equals the oracle.

One run with every service killed in turn, and a stop and a start after it. `scripts/test nightly-stack` has
one more that nothing disturbs, and one followed by the same year again. Each run has a seed of its own. The
durations are in artifacts/<tier>/year-*.json.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import pytest
from tarn_host import shell

from tests.support import flights
from tests.support.containers import LogKeeper, artifacts
from tests.support.stack import ENGINE_S, SCRIPTS, Stack, eventually, run

LOAD_S = 900
KILLED = ("ingest", "catalog", "minio", "kafka", "spark", "pipeline")
BETWEEN_KILLS_S = 9
HEAL_S = 300
COMPLETE = "The lake holds the whole year already"


def note(name: str, **facts: object) -> None:
    """Store the figures of a run."""
    (artifacts() / f"year-{name}.json").write_text(json.dumps(facts, indent=1, default=str))


def shares(seed: int) -> tuple[str, ...]:
    """The options of a load with 2 % duplicates, 5 % late and 0.1 % broken events."""
    return (*flights.SHARES, "--seed", str(seed))


@pytest.mark.nightly("a load that nothing disturbs needs an unusual time, or goes wrong by another seed")
@pytest.mark.timeout(LOAD_S + 600)
def test_a_year_equals_the_oracle_and_survives_a_stop(
    emptied: Callable[[], Stack], log_keeper: LogKeeper
) -> None:
    stack = emptied()
    begun_s = time.monotonic()
    told = flights.load(stack, *shares(1), timeout_s=LOAD_S)
    seconds = round(time.monotonic() - begun_s, 1)
    assert "gold complete after" in told
    assert sum(flights.end_offsets(stack).values()) == flights.messages_of_a_year()
    assert flights.wrong(stack) == []

    sums = stop_and_start(stack, log_keeper, seed=1)
    note("seed-1", load_seconds=seconds, told=told.splitlines()[-6:], tables=sums)


def stop_and_start(stack: Stack, log_keeper: LogKeeper, *, seed: int) -> dict[str, tuple[int, int]]:
    """Require that a complete lake takes no second load, and is the same after a stop and a start.

    Returns:
        The checksums of its tables.
    """
    sums, ends = flights.checksums(stack, flights.ALL), flights.end_offsets(stack)
    assert COMPLETE in flights.load(stack, *shares(seed), timeout_s=300)
    assert flights.end_offsets(stack) == ends, "a load on a complete lake sends nothing"
    stack.keep_logs(log_keeper)
    for verb in ("down", "up"):
        answer = stack.script(verb)
        assert answer.code == 0, answer.text[-4_000:]
    assert flights.checksums(stack, flights.ALL) == sums
    assert flights.end_offsets(stack) == ends
    return sums


@pytest.mark.in_turn(1, "a million messages, with every service killed meanwhile, lose or double rows")
@pytest.mark.timeout(2 * LOAD_S + 600)
def test_a_year_equals_the_oracle_whatever_is_killed_meanwhile(
    emptied: Callable[[], Stack], log_keeper: LogKeeper
) -> None:
    stack = emptied()
    before, stop = restarts(stack), threading.Event()

    def kill_in_turn() -> None:
        """What others log meanwhile is expected, until all are healthy again."""
        with stack.fault():
            for service in KILLED:
                if stop.wait(BETWEEN_KILLS_S):
                    return
                while not is_killed(stack, service) and not stop.wait(2):
                    pass
            while not stop.wait(2) and set(stack.health().values()) != {"healthy"}:
                pass

    killer = threading.Thread(target=kill_in_turn)
    killer.start()
    begun_s, loads = time.monotonic(), 0
    try:
        while True:
            loads += 1
            answer = stack.script("tarn", "demo", "load", *shares(2), timeout_s=LOAD_S)
            if answer.code == 0:
                break
            assert time.monotonic() - begun_s < LOAD_S, answer.text[-4_000:]
    finally:
        stop.set()
        killer.join()
    seconds = round(time.monotonic() - begun_s, 1)
    with stack.fault():
        stack.await_healthy(timeout_s=HEAL_S)
    kills = {service: n - before[service] for service, n in restarts(stack).items()}
    note("seed-2", seconds=seconds, loads=loads, kills=kills)
    assert all(n > 0 for n in kills.values()), f"each was killed while events flowed: {kills}"
    assert sum(flights.end_offsets(stack).values()) == flights.messages_of_a_year(), "each message once"
    assert flights.wrong(stack) == []
    answer = stack.script("tarn", "audit", "bronze.flight_events", timeout_s=300)
    assert answer.code == 0, answer.text
    stop_and_start(stack, log_keeper, seed=2)


def restarts(stack: Stack) -> dict[str, int]:
    """Number of restarts by the engine of each service that is killed."""
    return {service: int(stack.inspect(service)["RestartCount"]) for service in KILLED}


def is_killed(stack: Stack, service: str) -> bool:
    """Kill the service; False if it took no signal, as one that is just being started again."""
    try:
        stack.signal_application(service, "SIGKILL")
    except (AssertionError, subprocess.TimeoutExpired):
        return False
    return True


@pytest.mark.nightly("messages sent twice change more than bronze, or an interrupted load loses its place")
@pytest.mark.timeout(2 * LOAD_S + 600)
def test_a_year_sent_twice_doubles_bronze_alone(emptied: Callable[[], Stack]) -> None:
    """The second load is interrupted; the next one resumes where it stopped."""
    stack = emptied()
    flights.load(stack, *shares(3), timeout_s=LOAD_S)
    assert flights.wrong(stack) == []
    once, rows = flights.checksums(stack), flights.checksums(stack, flights.ALL)["bronze.flight_events"][0]
    year = flights.messages_of_a_year()
    begun_s = time.monotonic()
    stop_a_load(stack, lambda: sum(flights.end_offsets(stack).values()) > year)
    stopped_at = sum(flights.end_offsets(stack).values())
    assert year < stopped_at < 2 * year, "it was stopped on its way"
    flights.load(stack, *shares(3), timeout_s=LOAD_S)
    note("seed-3", again_seconds=round(time.monotonic() - begun_s, 1), stopped_at=stopped_at)
    assert sum(flights.end_offsets(stack).values()) == 2 * year
    assert flights.checksums(stack, flights.ALL)["bronze.flight_events"][0] == 2 * rows
    assert flights.checksums(stack) == once
    assert flights.wrong(stack) == []


def stop_a_load(stack: Stack, when: Callable[[], bool]) -> None:
    """Begin to send the year again and interrupt it, as Ctrl-C does, as soon as the condition holds."""
    shell.hear_interrupts()
    command = [str(SCRIPTS / "tarn"), "demo", "load", *shares(3), "--again"]
    with subprocess.Popen(
        command, env={**os.environ, **stack.env}, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as sending:
        eventually(when, timeout_s=120, what="messages are sent")
        os.killpg(sending.pid, signal.SIGINT)
        _, told = sending.communicate(timeout=90)
    assert sending.returncode == 130, told[-2_000:]
    assert "Stopped; the next load goes on from here." in told
    left = run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"name={stack.name}-cli-run"], timeout_s=ENGINE_S
    )
    assert (left.code, left.text.strip()) == (0, ""), "its container ended with it"
