"""A body's weight is an upper bound of its memory; a budget is never exceeded and serves in FIFO order."""

from __future__ import annotations

import asyncio
import tracemalloc

import orjson
import pytest

from tarn.adapters.budget import Budget
from tarn.core.errors import UnavailableError
from tarn_catalog.rest.bodies import WEIGHT_BYTES_MAX, TooLargeError, weight


@pytest.mark.long
@pytest.mark.parametrize(
    "piece",
    [
        b"{}",
        b"[]",
        b'{"a":1}',
        b'{"a":{},"b":[]}',
        b"[1]",
        b"[[]]",
        b"1",
        b"1.5",
        b"123456789012345678",
        b'""',
        b'"ab"',
        b'"\xc3\xa4b"',
        b'{"snapshot-id":123456789012,"summary":{"operation":"append","added-records":"7"}}',
    ],
)
def test_a_weight_bounds_what_is_parsed(piece: bytes) -> None:
    body = b"[" + b",".join([piece] * 20_000) + b"]"
    tracemalloc.start()
    parsed = orjson.loads(body)
    real = tracemalloc.get_traced_memory()[0] + len(body)
    tracemalloc.stop()
    assert len(parsed) == 20_000
    assert real <= weight(body)


@pytest.mark.long
def test_a_long_text_weighs_little_more_than_itself() -> None:
    plain = b'{"text":"' + b"a" * 15_000_000 + b'"}'
    assert weight(plain) < 2 * len(plain) + 1_000
    for wide in ("\U0001f3d4".encode(), b"\\ud83c\\udfd4"):
        body = plain.replace(b"a", wide, 1)
        tracemalloc.start()
        parsed = orjson.loads(body)
        real = tracemalloc.get_traced_memory()[0] + len(body)
        tracemalloc.stop()
        assert len(parsed["text"]) == 15_000_000
        assert 4 * len(body) < real <= weight(body)


def test_a_body_that_would_take_too_much_is_named_with_its_numbers() -> None:
    body = b"[" + b"{}," * (WEIGHT_BYTES_MAX // 300) + b"{}]"
    with pytest.raises(
        TooLargeError, match=f"body of {len(body)} bytes may take .* at most {WEIGHT_BYTES_MAX}"
    ):
        weight(body)


def test_a_budget_is_never_exceeded_and_serves_in_order() -> None:
    held, most, order = 0, 0, []

    async def one(budget: Budget, number: int, size: int) -> None:
        nonlocal held, most
        async with budget.hold(size):
            held += size
            most = max(most, held)
            order.append(number)
            await asyncio.sleep(0)
            held -= size

    async def run() -> None:
        budget = Budget(100, wait_s_max=10, who="The catalog")
        sizes = [60, 60, 10, 100, 1, 30, 100, 70]
        await asyncio.gather(*(one(budget, number, size) for number, size in enumerate(sizes)))
        async with budget.hold(100):
            pass

    asyncio.run(run())
    assert order == list(range(8))
    assert most <= 100


def test_who_waits_too_long_is_told_and_takes_nothing() -> None:
    async def run() -> None:
        budget = Budget(100, wait_s_max=0.05, who="The catalog")
        async with budget.hold(60):
            with pytest.raises(
                UnavailableError, match=r"holds 60 bytes .* at most 100 fit; .* 50 more within 0\.05 s"
            ):
                async with budget.hold(50):
                    pytest.fail("there is no room")
        async with budget.hold(100):
            pass

    asyncio.run(run())
