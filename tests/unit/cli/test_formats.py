"""Rows as JSON, CSV and a table, lossless in the first two."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tarn.cli.formats import as_csv, as_json, as_records, as_table, page, plain
from tarn.cli.ports import Answer


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (2**62, 2**62),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (Decimal("1.10"), "1.10"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(1, 2, 3), "01:02:03"),
        (timedelta(seconds=90), 90.0),
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006Z"),
        (datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=1))), "2026-01-02T02:00:00Z"),
        (datetime(2026, 1, 2, 3), "2026-01-02T03:00:00"),
        (datetime(1, 1, 1, 3, tzinfo=timezone(timedelta(hours=5))), "0001-01-01T03:00:00+05:00"),
        (datetime(9999, 12, 31, 22, tzinfo=timezone(timedelta(hours=-5))), "9999-12-31T22:00:00-05:00"),
        (b"\x00\xff", "AP8="),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"k": [Decimal(1)]}, {"k": ["1"]}),
        ([(1, None)], [[1, None]]),
    ],
)
def test_values_in_json(value, expected):
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


def test_json_keeps_columns_with_the_same_name():
    answer = Answer(columns=("n", "n"), rows=((1, 2), (3, None)), truncated=True)
    assert json.loads(as_json(answer)) == {
        "columns": ["n", "n"],
        "rows": [[1, 2], [3, None]],
        "truncated": True,
    }


@pytest.mark.long
@given(rows=st.lists(st.tuples(st.text(alphabet=st.characters(exclude_characters="\r\0")), st.integers())))
def test_csv_reads_back_as_it_was_written(rows):
    text = as_csv(Answer(columns=("t", "n"), rows=tuple(rows)))
    found = list(csv.reader(io.StringIO(text)))
    assert found == [["t", "n"], *([t, str(n)] for t, n in rows)]


def test_csv_writes_null_as_nothing_and_nested_values_as_json():
    answer = Answer(columns=("a", "b"), rows=((None, {"k": [1]}),))
    assert as_csv(answer) == 'a,b\n,"{""k"": [1]}"\n'


def test_the_table_shows_values_as_they_are_and_cuts_long_ones():
    answer = Answer(columns=("a", "b"), rows=(("[red]not markup[/red]", None), ("x" * 500, 1.0)))
    console = Console(file=io.StringIO(), width=400)
    console.print(as_table(answer))
    text = console.file.getvalue()
    assert "[red]not markup[/red]" in text
    assert "NULL" in text
    assert "x" * 199 + "…" in text
    assert "x" * 200 not in text


def printed(answer: Answer, *, width: int, terminal: bool) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)
    for part in page(answer, console):
        console.print(part, soft_wrap=True)
    return console.file.getvalue()


WIDE = Answer(
    columns=("id", *(f"a_long_name_{n}" for n in range(20)), "notes"),
    rows=((1, *range(20), "first\nsecond"), (2, *range(20), None)),
)


def test_what_fits_is_a_table_and_ends_with_its_rows():
    text = printed(Answer(columns=("n", "t"), rows=((1, "a"), (2, "b"))), width=80, terminal=True)
    assert text.splitlines()[-1] == "(2 rows)"
    assert "row 1" not in text
    one = Answer(columns=("n",), rows=((1,),), truncated=True)
    assert printed(one, width=80, terminal=True).splitlines()[-1] == "(first 1 row)"
    assert printed(Answer(columns=("n",), rows=()), width=80, terminal=True).splitlines()[-1] == "(0 rows)"


def test_what_is_too_wide_for_the_terminal_is_one_line_a_value():
    lines = printed(WIDE, width=80, terminal=True).splitlines()
    assert lines[0].startswith("─[ row 1 ]")
    assert lines[1] == "id             │ 1"
    assert lines[2] == "a_long_name_0  │ 0"
    assert lines[22:25] == ["notes          │ first", "               │ second", lines[24]]
    assert lines[24].startswith("─[ row 2 ]")
    assert lines[-2:] == ["notes          │ NULL", "(2 rows)"]


def test_a_file_or_pipe_gets_whole_lines_however_wide():
    lines = printed(WIDE, width=100_000, terminal=False).splitlines()
    assert all(f"a_long_name_{n}" in lines[0] for n in range(20))
    assert lines[-1] == "(2 rows)"


def test_values_do_not_control_the_terminal():
    answer = Answer(columns=("a\x1b[2J",), rows=(("\x1b]0;owned\x07",), ("tab\tline\nnext\x9b",)))
    for shown in (as_table(answer), as_records(answer)):
        stream = io.StringIO()
        Console(file=stream, force_terminal=True, width=200, color_system=None).print(shown)
        assert not set(stream.getvalue()) & {"\x1b", "\x07", "\x9b"}
        assert "\\x1b]0;owned\\x07" in stream.getvalue()
    assert "\x1b]0;owned\x07" in as_csv(answer), "what a program reads is what it is"
