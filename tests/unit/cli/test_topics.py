"""Commands on topics: what they read, print and refuse; the topics themselves are in memory."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tarn.adapters.kafka_client import KafkaConnection, vendor
from tarn.adapters.kafka_login import ANONYMOUS
from tarn.cli import topics, wiring
from tarn.cli.clients.kafka_topics import KafkaTopics, Message, TopicDetails
from tarn.cli.main import main
from tarn.cli.ports import Bounds
from tarn.core.errors import InvalidError, UnavailableError

BOUNDS: Bounds = {0: (5, 12), 1: (0, 3)}


class Ended(BaseException):
    pass


class Topics:
    """Topic `orders` with two partitions, as `KafkaTopics`."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.log = [
            Message(partition=0, offset=5, time_ms=1_700_000_000_000, key=b"k", value="é\n1".encode()),
            Message(partition=1, offset=0, time_ms=-1, key=None, value=None),
            Message(partition=1, offset=1, time_ms=0, key=b"\xff", value=b"\xfe"),
        ]

    def bounds(self) -> Mapping[str, Bounds]:
        return {"orders": BOUNDS, "empty": {0: (0, 0)}}

    def details(self, topic: str) -> TopicDetails:
        return TopicDetails(
            name=topic, topic_id="id-1", bounds=self.bounds()[topic], configs={"retention.ms": "1000"}
        )

    def create(self, topic: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        self.done.append(("create", topic, partitions, dict(configs)))

    def delete(self, topic: str) -> None:
        self.done.append(("delete", topic))

    def produce(self, topic: str, messages: Iterable[tuple[bytes | None, bytes]]) -> Mapping[int, int]:
        sent = list(messages)
        self.done.append(("produce", topic, sent))
        return {0: len(sent)} if sent else {}

    def consume(self, topic: str, positions: Mapping[int, int], *, follow: bool) -> Iterator[Message]:
        self.done.append(("consume", topic, dict(positions), follow))
        return iter(self.log)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Topics:
    found = Topics()
    monkeypatch.setattr(wiring, "topics", lambda _settings: found)
    return found


def run(*words: str) -> int:
    codes: list[int] = []

    def end(code: int) -> Any:
        codes.append(code)
        raise Ended

    with pytest.raises(Ended):
        main(words, end=end)
    return codes[0]


def test_topics_are_listed_and_described(held: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topic", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "orders", "partitions": 2, "offsets": 10},
        {"topic": "empty", "partitions": 1, "offsets": 0},
    ]
    assert run("topic", "describe", "orders", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "topic": "orders",
        "topicId": "id-1",
        "configs": {"retention.ms": "1000"},
        "partitions": {"0": {"first": 5, "next": 12}, "1": {"first": 0, "next": 3}},
    }
    assert run("topic", "list") == run("topic", "describe", "orders") == 0
    text = capsys.readouterr().out
    assert "orders" in text
    assert "retention.ms = 1000" in text


def test_a_topic_is_created_as_asked(held: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topic", "create", "a.b", "--partitions", "3", "--config", "retention.ms = 5") == 0
    assert held.done == [("create", "a.b", 3, {"retention.ms": "5"})]
    assert capsys.readouterr().out == "topic a.b is there, with 3 partitions\n"
    assert run("topic", "create", "a b") == 2
    assert "'a b' is not the name of a topic" in capsys.readouterr().err
    assert run("topic", "create", "a", "--config", "retention") == 2
    assert "write name=value" in capsys.readouterr().err
    assert len(held.done) == 1


def test_a_topic_is_deleted_only_when_that_is_said(held: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("topic", "delete", "orders") == 2
    assert "topic orders holds 10 offsets; add --yes" in capsys.readouterr().err
    assert held.done == []
    assert run("topic", "delete", "orders", "--yes") == 0
    assert held.done == [("delete", "orders")]


def test_each_line_is_a_message(
    held: Topics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    typed(b'{"id":1}\r\n\n{"id":2}')
    assert run("produce", "orders") == 0
    assert held.done.pop() == ("produce", "orders", [(None, b'{"id":1}'), (None, b'{"id":2}')])
    assert capsys.readouterr().out == "2 messages sent: 2 in partition 0\n"
    typed(b"a\tb\tc\n")
    assert run("produce", "orders", "--keys") == 0
    assert held.done.pop() == ("produce", "orders", [(b"a", b"b\tc")])
    assert capsys.readouterr().out == "1 message sent: 1 in partition 0\n"
    typed(b"a\tb\nno tab\n")
    assert run("produce", "orders", "--keys") == 2
    assert "line 2 has no tab between key and message: b'no tab'" in capsys.readouterr().err
    typed(b"")
    assert run("produce", "orders") == 0
    assert capsys.readouterr().out == "0 messages sent\n"


def test_messages_are_printed_one_per_line(held: Topics, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run("consume", "orders") == 0
    assert capfdbinary.readouterr().out.decode() == "é\\n1\n<null>\n\\xfe\n"
    assert held.done == [("consume", "orders", {0: 5, 1: 0}, False)]
    assert run("consume", "orders", "--json", "--max", "3") == 0
    said = capfdbinary.readouterr()
    assert said.err == b""
    assert [json.loads(line) for line in said.out.splitlines()] == [
        {"partition": 0, "offset": 5, "time": "2023-11-14T22:13:20+00:00", "key": "k", "value": "é\n1"},
        {"partition": 1, "offset": 0, "time": None, "key": None, "value": None},
        {
            "partition": 1,
            "offset": 1,
            "time": "1970-01-01T00:00:00+00:00",
            "keyBase64": "/w==",
            "valueBase64": "/g==",
        },
    ]
    assert run("consume", "orders", "--max", "2") == 0
    said = capfdbinary.readouterr()
    assert said.out.count(b"\n") == 2
    assert b"Only the first 2 messages are shown" in said.err


def test_whoever_follows_a_topic_gets_more_than_a_thousand(
    held: Topics, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    held.log = [Message(partition=0, offset=n, time_ms=0, key=None, value=b"x") for n in range(1_500)]
    assert run("consume", "orders", "--follow") == 0
    assert capfdbinary.readouterr().out.count(b"\n") == 1_500
    assert run("consume", "orders", "--follow", "--max", "7") == 0
    assert capfdbinary.readouterr().out.count(b"\n") == 7
    assert run("consume", "orders") == 0
    said = capfdbinary.readouterr()
    assert said.out.count(b"\n") == 1_000
    assert b"Only the first 1,000 messages are shown" in said.err


@pytest.mark.parametrize(
    ("start", "last", "partition", "expected"),
    [
        ("start", None, None, {0: 5, 1: 0}),
        ("end", None, None, {0: 12, 1: 3}),
        ("7", None, None, {0: 7, 1: 3}),
        ("2", None, None, {0: 5, 1: 2}),
        ("start", 2, None, {0: 10, 1: 1}),
        ("start", 100, 1, {1: 0}),
        ("end", None, 0, {0: 12}),
    ],
)
def test_reading_begins_within_the_log(
    start: str, last: int | None, partition: int | None, expected: dict[int, int]
) -> None:
    assert topics.positions(BOUNDS, start, last=last, partition=partition) == expected


@pytest.mark.parametrize(
    ("start", "last", "partition", "message"),
    [
        ("begin", None, None, "--from 'begin': write start, end or an offset"),
        ("-1", None, None, "--from '-1'"),
        ("end", 3, None, "--from and --last at once"),
        ("start", None, 2, "the topic has no partition 2; it has 0, 1"),
    ],
)
def test_a_beginning_that_makes_no_sense_is_refused(
    start: str, last: int | None, partition: int | None, message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        topics.positions(BOUNDS, start, last=last, partition=partition)


@pytest.mark.long
def test_a_reader_that_leaves_early_is_no_error() -> None:
    code = (
        "import types\n"
        "from tarn.cli import wiring\n"
        "from tarn.cli.clients.kafka_topics import Message, TopicDetails\n"
        "from tarn.cli.main import main\n"
        "one = Message(partition=0, offset=0, time_ms=0, key=None, value=b'x' * 1000)\n"
        "wiring.topics = lambda _s: types.SimpleNamespace(\n"
        "    details=lambda t: TopicDetails(name=t, topic_id='1', bounds={0: (0, 9)}, configs={}),\n"
        "    consume=lambda t, p, follow: iter([one] * 10_000))\n"
        "main(['consume', 'orders', '--max', '10000'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == b"x" * 10
        process.stdout.close()
        said = process.stderr.read()
        assert (process.wait(30), said) == (0, b"")


class Silent:
    """A consumer whose broker has gone, or where a transaction is open."""

    def assign(self, parts: list[Any]) -> None:
        """Take note of nothing."""

    def seek(self, part: Any, offset: int) -> None:
        """Take note of nothing."""

    def end_offsets(self, parts: list[Any], timeout_ms: int) -> dict[Any, int]:
        return dict.fromkeys(parts, 5)

    def poll(self, timeout_ms: int) -> dict[Any, Any]:
        return {}

    def position(self, part: Any) -> int:
        return 3


@pytest.mark.long
def test_a_read_that_does_not_get_on_ends_with_an_error() -> None:
    found = KafkaTopics("127.0.0.1:1", ANONYMOUS, timeout_s=0.2)
    with pytest.raises(UnavailableError, match=r"nothing came for 0\.2 s"):
        list(found._read(Silent(), "orders", {0: 3}, follow=False))


class Refusing:
    """A connection whose broker refuses the second message."""

    def __init__(self, inner: KafkaConnection, refusal: Exception) -> None:
        self.inner, self.refusal, self.sent = inner, refusal, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def producer(self, **_options: Any) -> Any:
        return self

    def send(self, topic: str, value: bytes, *, key: bytes | None) -> Any:
        self.sent += 1
        taken = self.sent == 1
        return SimpleNamespace(
            add_callback=lambda call: call(SimpleNamespace(partition=0)) if taken else None,
            add_errback=lambda call: None if taken else call(self.refusal),
        )

    def flush(self) -> None:
        """Nothing waits."""

    def close(self, timeout: float) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        (vendor.InvalidRecordError("no key"), InvalidError, "a compacted topic takes messages with a key"),
        (vendor.MessageSizeTooLargeError("big"), InvalidError, "max.message.bytes"),
        (vendor.RecordListTooLargeError(), InvalidError, "scripts/tarn topic describe orders"),
        (vendor.RequestTimedOutError(), UnavailableError, "does not answer"),
    ],
)
def test_a_message_that_the_broker_refuses_is_no_outage(
    refusal: Exception, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = KafkaTopics("127.0.0.1:1", ANONYMOUS, timeout_s=0.2)
    monkeypatch.setattr(found, "_require", lambda _topic: None)
    monkeypatch.setattr(found, "_connection", Refusing(found._connection, refusal))
    with pytest.raises(kind, match=words) as caught:
        found.produce("orders", [(None, b"1"), (None, b"2"), (None, b"3")])
    assert "1 messages were acknowledged" in str(caught.value)


@pytest.mark.parametrize(
    ("time_ms", "time"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20.123000+00:00"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999000+00:00"),
        (253_402_300_800_000, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_producer_may_send_any_number_as_the_time(time_ms: int, time: str | None) -> None:
    message = Message(partition=0, offset=0, time_ms=time_ms, key=None, value=b"x")
    assert json.loads(topics.as_object(message))["time"] == time


class Screen(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Screen, io.TextIOWrapper])
def test_a_message_does_not_control_the_terminal_and_a_pipe_gets_its_bytes(
    kind: type[io.TextIOWrapper], held: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.log = [Message(partition=0, offset=5, time_ms=0, key=None, value=b"\x1b]0;owned\x07\tb")]
    out = kind(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    assert run("consume", "orders") == 0
    printed = out.buffer.getvalue()  # type: ignore[attr-defined]
    assert printed == (b"\\x1b]0;owned\\x07\tb\n" if kind is Screen else b"\x1b]0;owned\x07\tb\n")
