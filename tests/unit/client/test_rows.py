"""Rows of the writers as JSON: they read as the same values or are refused; and the rows of errors."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.adapters.gateway_client import BODY_BYTES_MAX
from tarn.client.repeats import RepeatTooLateError
from tarn.client.writing import AnswerGoneError, NotTakenError, Receipt, RejectedRowsError, RowWriter
from tarn.core.errors import InvalidError, NotFoundError, TarnError, UnavailableError
from tarn.gateway import bodies

NAN, INFINITE = float("nan"), float("inf")


@dataclass
class Point:
    """A value that JSON has as an object."""

    x: float
    more: dict[Any, Any] = field(default_factory=dict)


class Level(Enum):
    """Values by name."""

    NONE = NAN
    LOW = 1


class Gateway:
    """Keeps the bodies that it gets.

    Attributes:
        bodies: the bodies.
        rejected: index to reason of the rows that it rejects.
        error: what it answers instead.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.rejected: dict[int, str] = {}
        self.error: Exception | None = None

    def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        del table, kind, key
        self.bodies.append(body)
        if self.error is not None:
            raise self.error
        return Receipt(accepted=0, rejected=self.rejected)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture
def rows(gateway: Gateway) -> RowWriter:
    return RowWriter(table="a.b", client=gateway, sleep=lambda _: None)


def sent(row: Mapping[Any, Any]) -> Any:
    """A row as the gateway reads it."""
    gateway = Gateway()
    RowWriter(table="a.b", client=gateway).send([row])
    return orjson.loads(gateway.bodies[0])


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"id": 1, "x": NAN}, "x is nan"),
        ({"x": INFINITE}, "x is inf"),
        ({"x": -INFINITE}, "x is -inf"),
        ({"a": None, "b": {"c": [{"d": 1.0}, {"d": NAN}]}}, r"b\.c\[1\]\.d is nan"),
        ({"pair": (1.0, NAN)}, r"pair\[1\] is nan"),
        ({"point": Point(NAN)}, r"point\.x is nan"),
        ({"level": Level.NONE}, "level is nan"),
        ({"x": np.nan}, "x is nan"),
        ({"m": {NAN: 1}}, "a key of m is nan"),
        ({"m": {1: NAN}}, r"m\[1\] is nan"),
    ],
)
def test_a_number_that_json_has_no_form_for_is_refused_by_name(
    rows: RowWriter, row: dict[str, Any], named: str
) -> None:
    rows.write({"id": 0})
    for refuse in (lambda: rows.write(row), lambda: rows.send([row])):
        with pytest.raises(InvalidError, match=f"{named}, which JSON has no form for.*pyarrow table"):
            refuse()
    rows.flush()
    assert isinstance(rows.client, Gateway)
    assert rows.client.bodies == [b'{"id":0}']


@pytest.mark.parametrize(
    "value", [np.float64("nan"), np.float32(1), np.int64(1), np.array([NAN]), np.datetime64("NaT")]
)
def test_a_value_of_numpy_is_refused_and_does_not_become_null(rows: RowWriter, value: object) -> None:
    with pytest.raises(InvalidError, match="numpy"):
        rows.write({"x": [value]})


def test_null_and_its_word_are_sent(rows: RowWriter) -> None:
    row = {"a": None, "b": "null", "c": [None, {"d": None}], "e": 1.5, "f": Level.LOW}
    assert sent(row) == {**row, "f": 1}
    assert rows.flush() is None


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), "1889-12-31T23:06:32+00:00"),
        (datetime(1890, 1, 1, tzinfo=ZoneInfo("Africa/Abidjan")), "1890-01-01T00:16:08+00:00"),
        (
            datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1, microseconds=1))),
            "2025-12-31T22:59:59.999999+00:00",
        ),
        (
            datetime(2026, 7, 1, 0, 0, 0, 5, tzinfo=ZoneInfo("Asia/Kolkata")),
            "2026-07-01T00:00:00.000005+05:30",
        ),
        (datetime(2026, 7, 1, tzinfo=timezone(timedelta(minutes=-210))), "2026-07-01T00:00:00-03:30"),
        (datetime(2026, 7, 1, tzinfo=UTC), "2026-07-01T00:00:00+00:00"),
        (datetime(20, 7, 1, 0, 0, 0, 1), "0020-07-01T00:00:00.000001"),
    ],
)
def test_a_time_is_sent_as_the_same_moment(when: datetime, text: str) -> None:
    assert sent({"at": when, "more": [{"at": when}], "by": {when: 1}}) == {
        "at": text,
        "more": [{"at": text}],
        "by": {text: 1},
    }


@settings(max_examples=200, deadline=None)
@given(
    st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)),
    st.integers(-86_399_000_000, 86_399_000_000),
)
def test_a_time_of_any_offset_is_sent_as_the_same_moment(naive: datetime, offset_us: int) -> None:
    when = naive.replace(tzinfo=timezone(timedelta(microseconds=offset_us)))
    assert datetime.fromisoformat(sent({"at": when})["at"]) == when


def test_other_values_have_the_form_that_their_columns_read() -> None:
    row = {"d": date(2026, 1, 2), "t": time(1, 2, 3, 4), "n": Decimal("1.10"), "b": b"\xff", "p": Point(1.5)}
    assert sent(row) == {
        "d": "2026-01-02",
        "t": "01:02:03.000004",
        "n": "1.10",
        "b": base64.b64encode(b"\xff").decode(),
        "p": {"x": 1.5, "more": {}},
    }
    for refused in ({"t": time(1, tzinfo=UTC)}, {"x": 1j}, {"x": {1: object()}}):
        with pytest.raises(InvalidError, match="no form in JSON"):
            sent(refused)
    circle: dict[Any, Any] = {1: None}
    circle[2] = circle
    with pytest.raises(InvalidError, match="no form in JSON"):
        sent(circle)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({1: "a", "1": "b"}, "1 and '1' are the same key in JSON, '1'.* in the row"),
        ({"m": [{"true": 1, True: 2}]}, r"'true' and True are the same key.* in m\[0\]"),
        ({"p": Point(1.0, {None: 1, "null": 2})}, r"None and 'null' are the same key.* in p\.more"),
    ],
)
def test_keys_that_are_the_same_in_json_are_refused_by_name(
    rows: RowWriter, row: dict[Any, Any], named: str
) -> None:
    with pytest.raises(InvalidError, match=named):
        rows.write(row)
    assert rows.flush() is None


def test_keys_that_are_no_text_are_sent_as_text() -> None:
    row = {1: {"a": 1}, "m": [{True: 1, date(2026, 1, 2): (Level.LOW,), 1.5: Point(1.5, {2: None})}]}
    assert sent(row) == {
        "1": {"a": 1},
        "m": [{"true": 1, "2026-01-02": [1], "1.5": {"x": 1.5, "more": {"2": None}}}],
    }


def test_the_body_that_a_row_has_to_fit_into_is_the_gateways() -> None:
    assert BODY_BYTES_MAX == bodies.BODY_BYTES_MAX


def note(size: int) -> dict[str, str]:
    """A row of this size as JSON."""
    return {"n": "x" * (size - len(b'{"n":""}'))}


def test_a_row_that_fits_into_no_request_is_refused_and_the_rows_before_it_stay(
    gateway: Gateway, rows: RowWriter
) -> None:
    rows.write({"id": 1})
    with pytest.raises(
        InvalidError, match=f"has {BODY_BYTES_MAX + 1} bytes as JSON, a request {BODY_BYTES_MAX}"
    ):
        rows.write(note(BODY_BYTES_MAX + 1))
    assert gateway.bodies == []
    rows.flush()
    assert gateway.bodies == [b'{"id":1}']


@pytest.mark.parametrize(("over", "requests"), [(0, 1), (1, 2)])
def test_a_batch_goes_first_with_which_a_row_does_not_fit_into_a_request(
    gateway: Gateway, rows: RowWriter, over: int, requests: int
) -> None:
    rows.write({"id": 1})
    rows.write(note(BODY_BYTES_MAX - len(b'{"id":1}\n') + over))
    assert len(gateway.bodies) == requests
    assert b"\n".join(gateway.bodies).count(b"\n") == 1
    assert max(map(len, gateway.bodies)) <= BODY_BYTES_MAX


Change = Callable[[dict[str, Any]], None]


def reuse(row: dict[str, Any]) -> None:
    row["id"] = -1


def grow(row: dict[str, Any]) -> None:
    row["tags"].append("late")


def spoil(row: dict[str, Any]) -> None:
    row["tags"].append(object())


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (reuse, datetime(2026, 1, 2, tzinfo=UTC)),
        (grow, "2026-01-02T00:00:00+00:00"),
        (spoil, "2026-01-02T00:00:00+00:00"),
    ],
)
def test_an_error_has_a_row_as_it_was_written_whatever_became_of_it_since(
    gateway: Gateway, rows: RowWriter, change: Change, at: object
) -> None:
    def write() -> None:
        row = {"id": 0, "tags": ["a"], "at": datetime(2026, 1, 2, tzinfo=UTC)}
        rows.write(row)
        change(row)

    gateway.rejected = {0: "bad"}
    write()
    with pytest.raises(RejectedRowsError) as rejected:
        rows.flush()
    expected = {"id": 0, "tags": ["a"], "at": at}
    assert rejected.value.rows == ((expected, "bad"),)
    gateway.error = NotFoundError("no table")
    write()
    with pytest.raises(NotFoundError) as dropped:
        rows.flush()
    assert list(dropped.value.rows) == [expected]


def test_an_error_that_is_not_about_a_batch_has_no_rows() -> None:
    assert list(UnavailableError("away").rows) == []


def test_rows_that_were_gathered_before_a_fork_are_the_parents(gateway: Gateway) -> None:
    process = 7
    rows = RowWriter(table="a.b", client=gateway, process=lambda: process)
    rows.write({"id": 0})
    process = 8
    for use in (lambda: rows.write({"id": 1}), rows.flush, rows.close):
        with pytest.raises(InvalidError, match=r"1 rows for a\.b .*process \(8\) was forked from 7"):
            use()
    process = 7
    rows.flush()
    assert gateway.bodies == [b'{"id":0}']
    process = 8
    rows.write({"id": 1})
    rows.flush()
    assert gateway.bodies == [b'{"id":0}', b'{"id":1}'], "without rows of the parent it is the child's"


@pytest.mark.parametrize(
    "error",
    [
        RejectedRowsError(
            "some", rows=[({"id": 1}, "bad")], receipt=Receipt(accepted=0, rejected={0: "bad"})
        ),
        AnswerGoneError("gone", rows=[{"id": 1}], receipt=Receipt(accepted=None, repeated=True)),
        NotTakenError("later", row={"id": 1}),
        RepeatTooLateError("late", rows=[{"id": 1}], key="k"),
        UnavailableError("busy", retry_after_s=2.0),
    ],
)
def test_an_error_comes_out_of_a_pool_of_processes_as_it_was(error: TarnError) -> None:
    """`multiprocessing.Pool` waits without end for one that cannot be read again."""
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize(
    "row",
    [None, 5, "", "id", b"id", ["ab", "cd"], [], {"a", "b"}, pa.record_batch({"a": [1]}), Point(1.0)],
)
def test_what_is_no_mapping_is_no_row(gateway: Gateway, rows: RowWriter, row: Any) -> None:
    for refuse in (lambda: rows.write(row), lambda: rows.send([row])):
        with pytest.raises(InvalidError, match=r"a row is a mapping .* of type \w+: .*from_pandas\(frame\)"):
            refuse()
    with pytest.raises(InvalidError, match=r"of type str: 'id'"):
        rows.send(pd.DataFrame({"id": [1, 2]}))  # type: ignore[arg-type]
    assert gateway.bodies == []


def test_a_row_may_be_any_mapping_or_pairs() -> None:
    for row in (MappingProxyType({"id": 1}), pd.Series({"id": 1}, dtype=object), [("id", 1)]):
        assert sent(row) == {"id": 1}  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [[([1], 2)], dict])
def test_what_python_makes_no_mapping_of_is_refused(rows: RowWriter, row: Any) -> None:
    with pytest.raises(InvalidError, match="a row has no form in JSON: "):
        rows.write(row)
