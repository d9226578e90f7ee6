"""The commands audit and trace: output, stream and exit code; the lake is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog
from pyroaring import BitMap64

from tarn.adapters.kafka import KafkaSources
from tarn.cli import trace as tracing
from tarn.cli import wiring
from tarn.cli.main import main
from tarn.cli.settings import Settings
from tarn.cli.trace import Found, InFile, Message, Trace, Where
from tarn.core.audit.accounts import Account, Tally, between
from tarn.core.audit.model import Finding, Kind
from tarn.core.audit.origins import Letter
from tarn.core.errors import CorruptStateError, InvalidError, NoSuchTableError, UnavailableError
from tarn.core.offsets import TopicIdentity
from tarn.ingest import audit as auditing
from tarn.ingest.audit import Report
from tarn.ingest.lake_files import CommitFacts

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOURCE = TopicIdentity(cluster="c", topic="orders", topic_id="t")


class EndedError(BaseException):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def run(*arguments: str) -> int:
    def end(code: int) -> Any:
        raise EndedError(code)

    with pytest.raises(EndedError) as caught:
        main(arguments, end=end)
    return caught.value.code


REAL_PORTS = wiring.lake_ports


@pytest.fixture(autouse=True)
def no_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def ports(settings: Settings, tell: Callable[[str], None]) -> Iterator[str]:
        tell("1 of 2 data files read")
        yield "the lake"

    monkeypatch.setattr(wiring, "lake_ports", ports)


def answers(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, answer: Any) -> list[tuple[Any, ...]]:
    asked: list[tuple[Any, ...]] = []

    def fake(*arguments: Any, **options: Any) -> Any:
        asked.append((*arguments, *options.values()))
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module, name, fake)
    return asked


def tally(offsets: BitMap64) -> Tally:
    found = Tally()
    found.add(offsets)
    return found


def report(*findings: Finding, rows: int = 1_200, asked: bool = True) -> Report:
    account = Account(
        topic="orders",
        partition=0,
        streams=("orders",),
        ends={SOURCE: 1_210},
        rows=tally(between(0, rows)),
        letters=tally(between(1_200, 1_203)),
        asked=between(1_203, 1_210) if asked else BitMap64(),
    )
    return Report(
        table="bronze.orders",
        snapshot_id=7,
        accounts=[account],
        findings=findings,
        files=12,
        dead_letter_tables=["ops.dead_letters"],
        unasked={} if asked else {"orders": "no broker answers"},
        seconds=0.34,
    )


DAMAGE = Finding(kind=Kind.OFFSETS_DOUBLED, where="bronze.orders", what="offset 7 twice", fix="roll back")
NOTE = Finding(kind=Kind.OFFSETS_HOLE, where="bronze.orders", what="7 [red]offsets[/red]", fix="nothing")


def test_a_whole_table_exits_0_with_a_line_per_partition_and_a_verdict(monkeypatch, capsys):
    asked = answers(monkeypatch, auditing, "audit", report())
    assert run("audit", "bronze.orders") == 0
    captured = capsys.readouterr()
    (row,) = [line for line in captured.out.splitlines() if line.startswith("orders ")]
    assert row.replace("|", "│").replace(" ", "").split("│") == [
        "orders",
        "orders",
        "0",
        "1,210",
        "1,200",
        "3",
        "7",
        "0",
        "0",
        "0",
    ]
    assert captured.out.splitlines()[-1] == (
        "Every message of its streams is in bronze.orders once: 1,200 rows in 12 files and 3 dead letters "
        "(0.3 s)."
    )
    assert captured.err == "1 of 2 data files read\n"
    assert asked == [("bronze.orders", "the lake")]


def test_damage_exits_1_and_is_printed_before_notes(monkeypatch, capsys):
    answers(monkeypatch, auditing, "audit", report(NOTE, DAMAGE))
    assert run("audit", "bronze.orders") == 1
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert lines == [
        "DAMAGE: bronze.orders: offsets doubled: offset 7 twice. Do: roll back.",
        "note: bronze.orders: offsets without a row: 7 [red]offsets[/red]. Do: nothing.",
        "bronze.orders is damaged, as said above: 1,200 rows in 12 files and 3 dead letters (0.3 s).",
    ]


def test_offsets_of_which_nothing_is_known_exit_0_and_are_in_the_verdict(monkeypatch, capsys):
    answers(monkeypatch, auditing, "audit", report(NOTE, asked=False))
    assert run("audit", "bronze.orders") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "The log of orders was not asked about everything: no broker answers." in lines
    assert "7 offsets have neither, and the log no longer says" in lines[-1]


def test_rows_that_another_engine_deleted_exit_0_and_are_in_the_verdict(monkeypatch, capsys):
    found = report(rows=1_190)
    found.accounts[0].taken |= between(1_190, 1_200)
    answers(monkeypatch, auditing, "audit", found)
    assert run("audit", "bronze.orders") == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Every message of its streams was added to bronze.orders once: 1,190 rows in 12 files and 3 dead "
        "letters; another engine deleted 10 rows since (0.3 s)."
    )


def test_json_is_all_of_stdout(monkeypatch, capsys):
    answers(monkeypatch, auditing, "audit", report(DAMAGE))
    assert run("audit", "bronze.orders", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["whole"], data["table"], data["findings"][0]["severity"]) == (
        False,
        "bronze.orders",
        "damage",
    )
    (partition,) = data["partitions"]
    assert (partition["next"], partition["rows"], partition["dead_letters"]) == (1_210, 1_200, 3)
    assert (partition["without_record"], partition["ranges"]["missing"]) == (7, [])


def test_what_others_wrote_reaches_no_terminal_as_control_characters(monkeypatch, capsys):
    loud = replace(DAMAGE, where="bronze.\x1b[2Jorders")
    answers(monkeypatch, auditing, "audit", replace(report(loud), unasked={"orders": "\x1b[31mno"}))
    assert run("audit", "bronze.orders") == 1
    commit = CommitFacts(snapshot_id=5, commit_id="c\x1b[2J", at=AT, operation="append")
    file = InFile(path="s3://tarn/\x1b[2J", commit=commit)
    answers(monkeypatch, tracing, "trace", found(Where.ROW, files=[file], next=9))
    assert run("trace", "orders/0/7") == 0
    answers(monkeypatch, auditing, "audit", InvalidError("a.b has no stream \x1b[2J"))
    assert run("audit", "bronze.orders") == 2
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said
    assert said.count("\\x1b[2J") == 4


def found(where: Where, **options: Any) -> Trace:
    each = Found(table="bronze.orders", stream="orders", where=where, what="a row", **options)
    return Trace(message=Message(topic="orders", partition=0, offset=7), found=[each])


FILES = (
    InFile(path="s3://tarn/a", commit=CommitFacts(snapshot_id=5, commit_id="c-1", at=AT, operation="append")),
    InFile(path="s3://tarn/b", commit=CommitFacts(snapshot_id=6, at=AT, operation="append")),
    InFile(path="s3://tarn/c", commit=CommitFacts(snapshot_id=4)),
)


def test_a_row_is_shown_with_file_snapshot_and_commit(monkeypatch, capsys):
    asked = answers(monkeypatch, tracing, "trace", found(Where.ROW, files=FILES, next=9))
    assert run("trace", "orders/0/7", "--table", "bronze.orders") == 0
    assert capsys.readouterr().out.splitlines() == [
        "orders/0/7 in bronze.orders (stream orders): a row",
        "  file      s3://tarn/a",
        "  snapshot  5, 2026-03-01 12:00:00Z",
        "  commit    c-1",
        "  file      s3://tarn/b",
        "  snapshot  6, 2026-03-01 12:00:00Z",
        "  commit    another writer's",
        "  file      s3://tarn/c",
        "  snapshot  4, its history is expired",
        "  commit    no longer known",
    ]
    assert asked == [(Message(topic="orders", partition=0, offset=7), "the lake", "bronze.orders")]


def test_a_dead_letter_is_shown_with_its_reason(monkeypatch, capsys):
    letters = [Letter(reason="not JSON", at=AT)]
    answers(monkeypatch, tracing, "trace", found(Where.LETTER, letters=letters))
    assert run("trace", "orders/0/7") == 0
    assert capsys.readouterr().out.splitlines()[-1] == ("  reason    not JSON (decoded 2026-03-01 12:00:00Z)")


@pytest.mark.parametrize("where", sorted(set(Where) - {Where.ROW, Where.LETTER}))
def test_a_message_that_is_not_there_exits_1(monkeypatch, capsys, where: Where):
    answers(monkeypatch, tracing, "trace", found(where, next=3))
    assert run("trace", "orders/0/7", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["found"], data["tables"][0]["where"], data["tables"][0]["next"]) == (False, where.value, 3)


@pytest.mark.parametrize(
    ("error", "code", "part"),
    [
        (NoSuchTableError("table a.b does not exist"), 2, "does not exist; scripts/tarn status lists"),
        (InvalidError("table a.b has no stream"), 2, "has no stream"),
        (UnavailableError("the store does not answer"), 3, "does not answer"),
        (CorruptStateError("manifest x cannot be read"), 5, "manifest x"),
    ],
)
def test_whatever_keeps_it_from_looking_has_its_own_exit_code(monkeypatch, capsys, error, code, part):
    answers(monkeypatch, auditing, "audit", error)
    answers(monkeypatch, tracing, "trace", error)
    for arguments in (("audit", "a.b"), ("trace", "orders/0/7")):
        assert run(*arguments) == code
        captured = capsys.readouterr()
        assert part in captured.err
        assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("audit", "orders"), "'orders' is not the name of a table; write NAMESPACE.TABLE"),
        (("audit", "a..b"), "'a..b' is not the name of a table"),
        (("trace", "orders/0"), "'orders/0' does not name a message; write TOPIC/PARTITION/OFFSET"),
        (("trace", "orders/0/1", "--table", "x"), "'x' is not the name of a table"),
        (("audit",), "Missing argument 'TABLE'"),
        (("trace",), "Missing argument 'TOPIC/PARTITION/OFFSET'"),
    ],
)
def test_wrong_input_exits_2_and_says_what_to_write(capsys, arguments, part):
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert part in captured.err
    assert captured.out == ""


def test_the_lake_is_opened_lazily_and_logs_leave_stdout_alone(monkeypatch, capsys, tmp_path):
    for name in ("s3_access_key_id", "s3_secret_access_key", "catalog_credential"):
        (tmp_path / name).write_text("TARNCLIAAAAAAAAAAAAA")
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    try:
        with REAL_PORTS(Settings.read(), print) as ports:
            assert (ports.bucket, isinstance(ports.topics, KafkaSources)) == ("tarn", True)
            structlog.get_logger().info("a note of an adapter")
            structlog.get_logger().warning("a warning of an adapter")
    finally:
        structlog.reset_defaults()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a warning" in captured.err
    assert "a note" not in captured.err
