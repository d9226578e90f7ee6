"""Decoding many records at once: good and bad ones among each other."""

from __future__ import annotations

from random import Random

import pytest

from tests.unit.ingest.test_decode import batch, decoder, same


def test_many_records_good_and_bad_decode_like_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several pieces of the parser, with every way in which a record is set apart."""
    monkeypatch.setattr("tarn.core.json_parser.TYPED_RECORDS", 50)
    kinds: list[bytes | None] = [
        None,
        b"junk",
        b'{"s":"a"',
        b'{"s":"\xff"}',
        '{"s":"\u00e9","i":1}'.encode(),
        b'{"s":"a","i":7.0}',
        b'{"i":3}',
        b'{"s":"a","i":99999999999}',
        b'{"s":"' + b"x" * 300 + b'"}',
        b'{"s":"a","zz":1e400}',
    ]
    values: list[bytes | None] = [b'{"s":"row","i":%d}' % n for n in range(600)]
    random = Random(11)
    for at in random.sample(range(600), 120):
        values[at] = random.choice(kinds)
    one = decoder(size=200)
    whole = one.decode(batch(values))
    alone = [one.decode(batch([value], first=100 + i)) for i, value in enumerate(values)]
    assert whole.bad == {i: found.bad[0] for i, found in enumerate(alone) if found.bad}
    assert list(whole.index) == [i for i, found in enumerate(alone) if not found.bad]
    rows = [row for found in alone for row in found.rows.to_pylist()]
    found = whole.rows.to_pylist()
    for i, row, expected in zip(whole.index, found, rows, strict=True):
        assert row["_tarn"].pop("time").timestamp() == 1_700_000_000 + i / 1_000
        expected["_tarn"].pop("time")
        assert same(row, expected), i
    assert 40 < len(whole.bad) < 120
