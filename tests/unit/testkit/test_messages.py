"""Rows as messages."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tarn_testkit.errors import InvalidRowsError
from tarn_testkit.messages import Message, messages_of

ID = uuid.UUID("01890000-0000-7000-8000-000000000000")


def test_values_have_the_form_that_ingest_reads() -> None:
    row = {
        "at": datetime(2026, 11, 25, 8, 0, 1, tzinfo=UTC),
        "day": date(2026, 11, 25),
        "price": Decimal("12.30"),
        "id": ID,
        "items": [{"n": 1}],
    }
    (found,) = messages_of([row])
    assert found == Message(
        key=None,
        value=b'{"at":"2026-11-25T08:00:01+00:00","day":"2026-11-25","price":"12.30",'
        b'"id":"01890000-0000-7000-8000-000000000000","items":[{"n":1}]}',
    )


def test_texts_and_bytes_are_sent_as_they_are() -> None:
    assert [one.value for one in messages_of(["not json", b"\x00\xff"])] == [b"not json", b"\x00\xff"]


def test_a_key_is_a_column_or_is_made() -> None:
    assert messages_of([{"id": 7}], key="id")[0].key == b"7"
    nulls = messages_of([{"id": None}, {"id": ""}, {"id": 0}], key="id")
    assert [one.key for one in nulls] == [None, b"", b"0"], "a null is no key, and not the text None"
    assert [one.key for one in messages_of(["a", "b"], key=lambda row: str(row).encode())] == [b"a", b"b"]


@pytest.mark.parametrize(
    ("rows", "key", "says"),
    [
        ({"id": 1}, None, "rows is a single dict; give a list of rows"),
        ("text", None, "rows is a single str"),
        (
            [{"id": 1}, {"id": object()}],
            None,
            "row 1 cannot be a JSON message: Type is not JSON serializable: object",
        ),
        ([{"id": 1}, 7], None, "row 1 cannot be a JSON message: it is a int, not a mapping, a text or bytes"),
        ([{"id": 1}], "customer", "row 0 has no column 'customer' to be the key"),
        (["text"], "customer", "row 0 has no column 'customer' to be the key"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(rows: Any, key: str | None, says: str) -> None:
    with pytest.raises(InvalidRowsError) as found:
        messages_of(rows, key=key)
    assert says in str(found.value)
