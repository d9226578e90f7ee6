"""The position of a derived table is read as the jobs write it."""

from __future__ import annotations

import pytest

from tarn.core.errors import CorruptStateError
from tarn.core.position import PROPERTY, Position
from tarn_jobs import position as jobs


def test_what_a_job_writes_is_understood():
    source = (("cluster", "c"), ("table", "s3://b/bronze/events-1"), ("topic", "events"), ("topic-id", "i"))
    written = jobs.Position(source=source, next=((0, 7), (3, 1))).to_json()
    assert Position.from_json(written) == Position(
        topic="events", table="s3://b/bronze/events-1", next={0: 7, 3: 1}
    )
    assert PROPERTY == jobs.PROPERTY


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"v": 2, "source": {}, "next": {}}', '{"v": 1, "source": {}, "next": {"a": 1}}']
)
def test_anything_else_is_refused_with_the_text(text: str):
    with pytest.raises(
        CorruptStateError, match=r"tarn\.position in a snapshot summary cannot be read"
    ) as told:
        Position.from_json(text)
    assert repr(text) in told.value.message
