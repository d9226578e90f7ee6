"""Commands on Kafka topics and their messages."""

from __future__ import annotations

import base64
import json
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tarn.cli import wiring
from tarn.cli.formats import TABLE_COLUMNS_MAX, visible
from tarn.cli.ports import Bounds
from tarn.cli.settings import Settings
from tarn.core.errors import InvalidError
from tarn.core.spec import TOPIC_PATTERN

if TYPE_CHECKING:
    from tarn.cli.clients.kafka_topics import Message, TopicDetails

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN_MAX = 1_000
"""Messages that are printed, unless another number is asked for."""

app = typer.Typer()
topic_app = typer.Typer(help="Kafka topics: list, create, describe and delete them.", no_args_is_help=True)
app.add_typer(topic_app, name="topic")

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
Topic = Annotated[str, typer.Argument(help="Name of the topic, such as shop.orders.")]


@topic_app.command("list")
def list_topics(as_json_: Json = False) -> None:
    """List the topics with their partitions and messages."""
    found = wiring.topics(Settings.read()).bounds()
    if as_json_:
        print(json.dumps([summary(name, bounds) for name, bounds in found.items()]))  # noqa: T201
        return
    table = Table("topic", "partitions", "offsets", box=None)
    for name, bounds in found.items():
        table.add_row(name, str(len(bounds)), f"{held(bounds):,}")
    _out().print(table)


@topic_app.command()
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(min=1, max=1_000, help="Number of partitions.")] = 1,
    config: Annotated[
        list[str] | None, typer.Option(help="A setting of the topic, such as retention.ms=86400000.")
    ] = None,
) -> None:
    """Create a topic."""
    wiring.topics(Settings.read()).create(
        topic_name(topic), partitions=partitions, configs=settings_of(config or [])
    )
    print(f"topic {topic} is there, with {partitions} partition{'' if partitions == 1 else 's'}")  # noqa: T201


@topic_app.command()
def describe(topic: Topic, as_json_: Json = False) -> None:
    """Show a topic's partitions, offsets and own settings."""
    found = wiring.topics(Settings.read()).details(topic_name(topic))
    if as_json_:
        print(json.dumps(details_data(found)))  # noqa: T201
        return
    out = _out()
    out.print(f"{found.name}: id {found.topic_id}", markup=False)
    for name, value in found.configs.items():
        out.print(f"  {name} = {value}", markup=False)
    table = Table("partition", "first offset", "next offset", "offsets", box=None)
    for partition, (first, end) in sorted(found.bounds.items()):
        table.add_row(str(partition), str(first), str(end), f"{end - first:,}")
    out.print(table)


@topic_app.command()
def delete(
    topic: Topic, yes: Annotated[bool, typer.Option("--yes", help="Delete it, with its messages.")] = False
) -> None:
    """Delete a topic with its messages; an ingestor that reads it stops. The tables stay."""
    topics = wiring.topics(Settings.read())
    if not yes:
        count = held(topics.details(topic_name(topic)).bounds)
        raise InvalidError(f"topic {topic} holds {count:,} offsets; add --yes to delete it with its messages")
    topics.delete(topic_name(topic))
    print(f"topic {topic} is deleted")  # noqa: T201


@app.command()
def produce(
    topic: Topic,
    keys: Annotated[bool, typer.Option("--keys", help="Each line is a key, a tab and a message.")] = False,
) -> None:
    """Send each line of stdin as a message; done when Kafka has them all."""
    sent = wiring.topics(Settings.read()).produce(
        topic_name(topic), messages(sys.stdin.buffer, with_keys=keys)
    )
    total = sum(sent.values())
    where = ", ".join(f"{count:,} in partition {partition}" for partition, count in sent.items())
    print(f"{total:,} message{'' if total == 1 else 's'} sent" + (f": {where}" if where else ""))  # noqa: T201


@app.command()
def consume(
    topic: Topic,
    start: Annotated[
        str, typer.Option("--from", help="start, end, or an offset; of every partition.")
    ] = "start",
    last: Annotated[
        int | None, typer.Option(min=1, help="The last offsets of each partition instead.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more, until Ctrl-C.")] = False,
    rows_max: Annotated[
        int | None,
        typer.Option(
            "--max",
            min=1,
            max=100_000_000,
            help="Messages to print at most; by default 1,000, and without end with --follow.",
            show_default=False,
        ),
    ] = None,
    as_json_: Annotated[
        bool, typer.Option("--json", help="One JSON object per message: offset, time, key and value.")
    ] = False,
) -> None:
    """Print the messages of a topic, one per line; nobody else's position changes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    topics = wiring.topics(Settings.read())
    bounds = topics.details(topic_name(topic)).bounds
    found = topics.consume(topic, positions(bounds, start, last=last, partition=partition), follow=follow)
    most = rows_max if rows_max is not None or follow else SHOWN_MAX
    out, shown = sys.stdout.buffer, sys.stdout.isatty()
    try:
        for message in islice(found, most):
            line = as_object(message) if as_json_ else as_text(message)
            out.write((visible(line) if shown else line).encode() + b"\n")
            if follow:
                out.flush()
        out.flush()
    except BrokenPipeError:
        return  # the reader has left
    if not follow and next(found, None) is not None:
        text = f"Only the first {most:,} messages are shown; ask for more with --max, or for --last."
        Console(stderr=True, highlight=False).print(text)


def topic_name(text: str) -> str:
    """The name of a topic, if it can be one.

    Raises:
        InvalidError: it cannot.
    """
    if not re.fullmatch(TOPIC_PATTERN, text) or text in (".", ".."):
        raise InvalidError(
            f"{text!r} is not the name of a topic; allowed are letters, digits, dots, _ and -, at most 249"
        )
    return text


def settings_of(texts: Iterable[str]) -> dict[str, str]:
    """Settings written as `name=value`.

    Raises:
        InvalidError: one is not written so.
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals):
            raise InvalidError(f"--config {text!r}: write name=value, such as retention.ms=86400000")
        found[name.strip()] = value.strip()
    return found


def held(bounds: Bounds) -> int:
    """Number of offsets in a topic's log; some may be without a message (transactions, compaction)."""
    return sum(end - first for first, end in bounds.values())


def summary(name: str, bounds: Bounds) -> dict[str, Any]:
    """A topic as JSON types; one element of `tarn topic list --json`."""
    return {"topic": name, "partitions": len(bounds), "offsets": held(bounds)}


def details_data(found: TopicDetails) -> dict[str, Any]:
    """A topic as JSON types; the format of `tarn topic describe --json`."""
    return {
        "topic": found.name,
        "topicId": found.topic_id,
        "configs": dict(found.configs),
        "partitions": {str(p): {"first": first, "next": end} for p, (first, end) in found.bounds.items()},
    }


def messages(lines: Iterable[bytes], *, with_keys: bool) -> Iterator[tuple[bytes | None, bytes]]:
    """(key, value) of each line that is not empty.

    Raises:
        InvalidError: a line has no tab although keys are expected.
    """
    for number, line in enumerate(lines, start=1):
        text = line.rstrip(b"\r\n")
        if not text:
            continue
        if not with_keys:
            yield None, text
            continue
        key, tab, value = text.partition(b"\t")
        if not tab:
            raise InvalidError(
                f"line {number} has no tab between key and message: {text[:60]!r}; the lines before it "
                "are sent"
            )
        yield key, value


def positions(bounds: Bounds, start: str, *, last: int | None, partition: int | None) -> Mapping[int, int]:
    """Where to begin in each partition, within its log.

    Args:
        bounds: partition to (first offset, offset after the last message).
        start: `start`, `end` or an offset.
        last: begin that many offsets before the end instead.
        partition: read this partition only.

    Raises:
        InvalidError: the start is neither, is given with `last`, or the topic has no such partition.
    """
    if partition is not None and partition not in bounds:
        raise InvalidError(
            f"the topic has no partition {partition}; it has {', '.join(map(str, sorted(bounds)))}"
        )
    if last is not None and start != "start":
        raise InvalidError("--from and --last at once: choose one")
    if start not in ("start", "end") and not (start.isascii() and start.isdigit()):
        raise InvalidError(f"--from {start!r}: write start, end or an offset")
    found = {}
    for p, (first, end) in bounds.items():
        if partition in (None, p):
            wanted = {"start": first, "end": end}.get(start) if last is None else end - last
            found[p] = min(max(int(start) if wanted is None else wanted, first), end)
    return found


def as_text(message: Message) -> str:
    """The value of a message on one line; what is no UTF-8 is escaped, a tombstone is `<null>`."""
    if message.value is None:
        return "<null>"
    text = message.value.decode("utf-8", "backslashreplace")
    return text.replace("\r", "\\r").replace("\n", "\\n")


def as_object(message: Message) -> str:
    """A message as one JSON object; what is no UTF-8 is in `keyBase64` or `valueBase64`."""
    try:
        at = None if message.time_ms < 0 else (_EPOCH + timedelta(milliseconds=message.time_ms)).isoformat()
    except OverflowError:  # A producer may send any number; as in the tables, one that is no time is null.
        at = None
    found: dict[str, Any] = {"partition": message.partition, "offset": message.offset, "time": at}
    for name, data in (("key", message.key), ("value", message.value)):
        try:
            found[name] = None if data is None else data.decode("utf-8")
        except UnicodeDecodeError:
            found[f"{name}Base64"] = base64.b64encode(data or b"").decode()
    return json.dumps(found, ensure_ascii=False)


def _out() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else TABLE_COLUMNS_MAX)
