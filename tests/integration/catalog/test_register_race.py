"""Writers that race for one key of the register on a real MinIO: each round has one winner.

`TARN_TEST_ROUNDS=10000 TARN_TEST_RECORD=FILE scripts/test integration -- -k racers` runs more rounds and
writes down what it found; docs/results has such a file.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tarn.core.outcome import Committed, Conflict, Outcome
from tarn_catalog.state.register import Register, RetryPolicy, Superseded
from tests.campaign.results import commit, now
from tests.integration.catalog.conftest import StoreServer

RACERS = 32
ROUNDS = int(os.environ.get("TARN_TEST_ROUNDS", "300"))
BARRIER_S = 60


@pytest.mark.timeout(3_600 if ROUNDS > 300 else 600)
def test_of_32_racers_for_a_key_one_wins_each_round(minio: StoreServer) -> None:
    """Half of the rounds create a key, the others swap the value of the round before."""
    start, (at, changed) = now(), commit()
    register = Register(minio.store(minio.user("catalog")), RetryPolicy())
    barrier = threading.Barrier(RACERS)

    def race(key: str, mine: bytes, etag: str | None) -> Outcome:
        barrier.wait(BARRIER_S)
        if etag is None:
            return register.create(key, mine, is_mine=lambda data: data == mine)
        return register.swap(key, mine, if_match=etag, is_mine=lambda data: data == mine)

    winners, key, held = 0, "", None
    with ThreadPoolExecutor(RACERS) as pool:
        for number in range(ROUNDS):
            if number % 2 == 0:
                key, held = f"catalog/v1/probe/{uuid.uuid4()}", None
            values = [f"{number}-{racer}".encode() for racer in range(RACERS)]
            runs = [pool.submit(race, key, value, held) for value in values]
            outcomes = [run.result() for run in runs]
            won = [one for one in zip(outcomes, values, strict=True) if isinstance(one[0], Committed)]
            assert len(won) == 1, (number, outcomes)
            (outcome, value), *_ = won
            assert isinstance(outcome, Committed)
            assert not isinstance(outcome, Superseded)
            assert sum(isinstance(one, Conflict) for one in outcomes) == RACERS - 1, (number, outcomes)
            stored = register.read(key)
            assert stored is not None
            assert (stored.data, stored.etag) == (value, outcome.etag)
            winners, held = winners + 1, outcome.etag
    if file := os.environ.get("TARN_TEST_RECORD"):
        found = {"what": "racers for one key of the register on MinIO", "commit": at, "changed": changed}
        found |= {"start": start, "end": now(), "rounds": ROUNDS, "racers": RACERS, "winners": winners}
        Path(file).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
