"""`tarn init`: a spec for a topic, drafted from a sample of its messages, and the rows that it would give."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console
from rich.text import Text

from tarn.cli import ingestors, wiring
from tarn.cli.formats import as_records, visible
from tarn.cli.ports import Answer, Bounds
from tarn.cli.settings import Settings
from tarn.cli.topics import held, positions, topic_name
from tarn.controller import declaring
from tarn.core.control.declared import Declared
from tarn.core.errors import InvalidError
from tarn.core.spec import FieldSpec, IngestorSpec, parse_document, parse_spec

if TYPE_CHECKING:
    from tarn.cli.clients.kafka_topics import Message

app = typer.Typer()

ROWS_SHOWN = 10
REASONS_SHOWN = 5
NOTES_MAX = 10
SAMPLE_BYTES_MAX = 32 << 20
"""Size of the messages from which on no more are looked at."""
YAML_WIDTH = 10_000
"""Wider than any key, so that no text is broken into lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A drafted spec, and what it makes of the sample.

    Attributes:
        text: the spec, as YAML.
        spec: the same, parsed.
        notes: what the columns cannot hold.
        rows: rows of the sample.
        bad: reasons of its bad records, with their number, the commonest first.
    """

    text: str
    spec: IngestorSpec
    notes: Sequence[str]
    rows: Sequence[Mapping[str, object]]
    bad: Sequence[tuple[str, int]]


@app.command()
def init(
    topic: Annotated[str, typer.Option("--from-topic", help="The topic to take a sample of.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the ingestor; by default the topic's.", show_default=False)
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            help="The table, as namespace.name; by default bronze.TOPIC, in lower case.", show_default=False
        ),
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, max=100_000, help="Messages to look at, the last; fewer beyond 32 MiB.")
    ] = 1_000,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the spec at once, if no message would be a bad record.")
    ] = False,
) -> None:
    """Print a spec for the JSON messages of a topic, from a sample of them, and ten decoded rows."""
    settings = Settings.read()
    topics = wiring.topics(settings)
    bounds = topics.details(topic_name(topic)).bounds
    messages = list(sampled(topics.consume(topic, _last(bounds, sample), follow=False), sample))
    found = draft(topic, messages, name=name, table=table)
    show(found, len(messages), Console(stderr=True, highlight=False), applies=apply)
    print(found.text, end="")  # noqa: T201
    if apply:
        _apply(settings, found)


def sampled(messages: Iterable[Message], count: int) -> Iterator[Message]:
    """Yield so many of the messages, and fewer if they are long."""
    size = 0
    for message in islice(messages, count):
        yield message
        size += len(message.value or b"")
        if size > SAMPLE_BYTES_MAX:
            return


def _apply(settings: Settings, found: Draft) -> None:
    """Apply a draft that decodes the whole sample.

    Raises:
        InvalidError: it does not, or another ingestor has its name.
    """
    if found.bad:
        raise InvalidError(
            f"nothing is applied: {sum(more for _, more in found.bad):,} of the messages would be bad "
            f"records; save the spec above as {found.spec.name}.yaml, change its columns, and run "
            f"scripts/tarn apply -f {found.spec.name}.yaml"
        )
    specs = wiring.specs(settings)
    _require_own(specs.get(found.spec.name), found.spec)
    made, what = declaring.put(
        specs, parse_document(found.text, file="the draft"), "the draft", take_over=False
    )
    print(f"ingestor {made.name} {what}", file=sys.stderr)  # noqa: T201
    ingestors.wake(settings)


def _require_own(there: Declared | None, spec: IngestorSpec) -> None:
    """Require that no ingestor of this name has another topic or table: names of topics may give the same.

    Raises:
        InvalidError: one has.
    """
    if there is None or there.gone:
        return
    kafka, table = there.spec.spec.source.kafka, str(there.spec.spec.table)
    if kafka.names != (spec.topic,) or table != str(spec.spec.table):
        raise InvalidError(
            f"nothing is applied: there is an ingestor {spec.name}, which brings {kafka} into {table}, and "
            f"that would end; choose another name and table for topic {spec.topic} with --name and --table",
            ingestor=spec.name,
        )


def _last(bounds: Bounds, sample: int) -> Mapping[int, int]:
    """Where to begin in each partition: each gives its share of the sample, or all if they are few."""
    partitions = max(1, sum(end > first for first, end in bounds.values()))
    share = -(-sample // partitions)
    if held(bounds) <= sample:
        return positions(bounds, "start", last=None, partition=None)
    return positions(bounds, "start", last=share, partition=None)


def draft(topic: str, messages: Sequence[Message], *, name: str | None, table: str | None) -> Draft:
    """The spec for a topic with these messages.

    Args:
        topic: name of the topic.
        messages: the sample.
        name: name of the ingestor; None: the topic's, in the letters that it may have.
        table: name of the table with its namespace; None: the topic's, in namespace bronze and in lower case,
            as SQL through Trino has every name.

    Raises:
        InvalidError: no column can be inferred, or a name is invalid.
    """
    from tarn.core.infer import infer

    inferred = infer(message.value for message in messages)
    if not inferred.fields:
        reason = "; ".join(inferred.notes[:NOTES_MAX]) or "no message is a JSON object with a value"
        if not messages:
            reason = "it has no messages yet"
        raise InvalidError(
            f"no columns can be inferred from topic {topic}: {reason}; send messages as JSON objects "
            "(scripts/tarn produce), or write the spec by hand (docs/first-stream.md)",
            topic=topic,
        )
    namespace, dot, short = (table or f"bronze.{_letters(topic.lower(), '_')}").rpartition(".")
    if not dot:
        raise InvalidError(f"--table {table!r}: write namespace.name, such as bronze.orders")
    text = spec_text(
        topic, inferred.fields, name=name or _letters(topic.lower(), "-"), namespace=namespace, table=short
    )
    spec = parse_spec(text, file="the draft")
    rows, bad = _decoded(spec, inferred.fields, messages)
    return Draft(text=text, spec=spec, notes=inferred.notes, rows=rows, bad=bad)


def spec_text(topic: str, fields: Sequence[FieldSpec], *, name: str, namespace: str, table: str) -> str:
    """The spec as YAML, one line per column."""
    times = [field.name for field in fields if field.type in ("date", "timestamp", "timestamptz")]
    hint = f", such as [day({times[0]})]" if times else ""
    lines = [
        "apiVersion: tarn/v1",
        "kind: Ingestor",
        "metadata:",
        f"  name: {_quoted(name)}",
        "spec:",
        "  source:",
        f"    kafka: {{topic: {_quoted(topic)}}}",
        "  table:",
        f"    namespace: {_quoted(namespace)}",
        f"    name: {_quoted(table)}",
        f"    partitioning: []  # for a large table{hint}",
        "  schema:",
        "    evolution: evolve  # an existing table is altered to have these columns",
        "    fields:",
    ]
    for field in fields:
        source = "" if field.source is None else f", from: {_quoted(field.source)}"
        lines.append(f"      - {{name: {_quoted(field.name)}, type: {_quoted(field.type)}{source}}}")
    return "\n".join(lines) + "\n"


def show(found: Draft, count: int, out: Console, *, applies: bool = False) -> None:
    """Print the first rows, what was not inferred, and what to do next, unless it is applied anyway."""
    columns = tuple(found.rows[0]) if found.rows else ()
    rows = tuple(tuple(row[column] for column in columns) for row in found.rows[:ROWS_SHOWN])
    out.print(as_records(Answer(columns=columns, rows=rows, truncated=False)), soft_wrap=True)
    file = f"{found.spec.name}.yaml"
    lines = [f"({len(rows)} of the {len(found.rows):,} rows that {count:,} messages give)"]
    for reason, more in found.bad[:REASONS_SHOWN]:
        lines.append(f"{more:,} of the messages would be bad records: {reason}")
    if len(found.bad) > REASONS_SHOWN:
        lines.append(f"and others, for {len(found.bad) - REASONS_SHOWN:,} more reasons")
    lines += found.notes
    if not applies:
        lines.append(
            f"Look through the spec below, save it as {file}, and run `scripts/tarn apply -f {file}`; "
            f"{found.spec.spec.table} then fills from the topic's first message on."
        )
    for line in lines:
        out.print(Text(visible(line)), soft_wrap=True)


def _decoded(
    spec: IngestorSpec, fields: Sequence[FieldSpec], messages: Sequence[Message]
) -> tuple[list[dict[str, object]], list[tuple[str, int]]]:
    """Rows of the sample, and the reasons of its bad records, each with their number."""
    from tarn.core.batch import RawBatch
    from tarn.core.decode import Decoder

    body = spec.spec
    decoder = Decoder(
        fields,
        source=spec.topic,
        trace=False,
        record_bytes_max=body.dead_letters.max_record_bytes,
    )
    decoded = decoder.decode(
        RawBatch(
            partitions=[m.partition for m in messages],
            offsets=[m.offset for m in messages],
            times_ms=[m.time_ms for m in messages],
            keys=[m.key for m in messages],
            values=[m.value for m in messages],
            ranges=(),
        )
    )
    return decoded.rows.to_pylist(maps_as_pydicts="lossy"), Counter(decoded.bad.values()).most_common()


def _letters(text: str, other: str) -> str:
    """The text with all but letters, digits and dashes or underscores replaced by `other`."""
    found = re.sub(rf"[^A-Za-z0-9{other}]+", other, text).strip(other)
    if other == "-":
        found = re.sub(r"^[^a-z]+", "", found)[:63].rstrip(other)
    return found or "stream"


def _quoted(text: str) -> str:
    """The text as a YAML scalar: as it is if that is plain, else quoted and escaped."""
    words = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", text) and text.lower() not in words:
        return text
    return yaml.dump(text, default_style='"', allow_unicode=True, width=YAML_WIDTH).strip()
