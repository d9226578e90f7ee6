"""The messages of `scripts/bench peers`: good ones decode as ingest decodes them, bad ones do not."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest

from tarn_demo.bench.peers import BAD_EVERY, SCHEMA, messages


@pytest.mark.parametrize("size", [200, 1_700])
def test_messages_are_as_large_as_asked_and_one_in_fifty_is_bad(size: int) -> None:
    made = list(messages(1_000, size))
    assert sum(one is None for one, _ in made) == 1_000 // BAD_EVERY
    sizes = [len(value) for one, value in made if one is not None]
    assert all(abs(found - size) <= 2 for found in sizes), set(sizes)
    assert len({value for _, value in made}) == 1_000


def test_good_messages_have_an_id_and_bad_ones_have_none() -> None:
    for number, value in messages(200, 200):
        try:
            found = orjson.loads(value).get("id")
        except ValueError:
            found = None
        assert found == number


def test_the_loop_writes_the_columns_of_the_messages() -> None:
    _, value = list(messages(2, 200))[1]
    row = orjson.loads(value)
    assert [*row] == [field.name for field in SCHEMA if field.name not in ("partition", "offset")]
    assert pa.types.is_float64(SCHEMA.field("delay").type)
