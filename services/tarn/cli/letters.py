"""`tarn dead-letters`: records that could not become rows: list them, show them, and replay them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tarn.cli import wiring
from tarn.cli.formats import plain, visible
from tarn.cli.render import add_row, new_table, tell_progress, unwrapped
from tarn.cli.settings import Settings
from tarn.core.dead_letter import MARKER_KEY
from tarn.core.errors import InvalidError, NotFoundError
from tarn.core.exit_codes import FAILED, OK
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_state import marker_property

if TYPE_CHECKING:
    import pyarrow as pa

    from tarn.cli.replay import Replayed
    from tarn.core.audit.model import FileEntry
    from tarn.ingest.lake_files import LakePorts

app = typer.Typer()
letters_app = typer.Typer(help="Records that could not become rows, and their replay.", no_args_is_help=True)
app.add_typer(letters_app, name="dead-letters")

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
LISTED = ("ingestor", "source", "reason", "decoded_at")
SHOWN = ("ingestor", "source", "partition", "offset", "time", "key", "value", "reason", "decoded_at")
VALUE_CHARS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The dead letters of a stream and topic.

    Attributes:
        table: name of the dead-letter table.
        stream: name of the stream.
        topic: name of the topic.
        letters: their number.
        first: when the first was decoded.
        last: when the last was decoded.
        reason: why that one is not a row.
    """

    table: str
    stream: str
    topic: str
    letters: int
    first: datetime
    last: datetime
    reason: str


@letters_app.command("list")
def list_letters(as_json_: Json = False) -> None:
    """List how many there are of each stream, and the reason of the newest."""
    with wiring.lake_ports(Settings.read(), tell_progress) as ports:
        found = groups(ports)
    if as_json_:
        print(json.dumps([plain(_group_data(group)) for group in found]))  # noqa: T201
        return
    table = new_table("stream", "topic", "dead letters>", "first", "newest", "reason of the newest")
    for group in found:
        times = (f"{at:%Y-%m-%d %H:%M:%S}Z" for at in (group.first, group.last))
        add_row(table, group.stream, group.topic, f"{group.letters:,}", *times, group.reason)
    unwrapped().print(table)


@letters_app.command()
def show(
    stream: Annotated[str, typer.Argument(help="A stream, as `list` names it.")],
    last: Annotated[int, typer.Option(min=1, max=100_000, help="How many, the newest.")] = 10,
    as_json_: Annotated[
        bool, typer.Option("--json", help="One JSON object per dead letter, with the whole value.")
    ] = False,
) -> None:
    """Show the newest dead letters of a stream, the newest last: where from, why, and the value."""
    with wiring.lake_ports(Settings.read(), tell_progress) as ports:
        found = newest(ports, stream, last)
    out = unwrapped()
    for row in found:
        if as_json_:
            print(json.dumps(as_object(row), ensure_ascii=False))  # noqa: T201
        else:
            out.print(Text("\n".join(as_lines(row))))


@letters_app.command()
def replay(
    file: Annotated[
        Path | None,
        typer.Argument(help="The ingestor's YAML file, as it is now; - reads stdin.", show_default=False),
    ] = None,
    ingestor: Annotated[
        str | None,
        typer.Option(help="Instead of a file: a declared ingestor, as it is now.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decode and count; add nothing.")] = False,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object per stream.")] = False,
    shown_as: Annotated[
        str | None, typer.Option("--shown-as", hidden=True, help="The name that messages show.")
    ] = None,
) -> None:
    """Add those that decode by now to their table, each once. 0: all are rows; 1: some cannot be."""
    from tarn.cli.replay import replay as add

    settings = Settings.read()
    spec = spec_to_replay(settings, file, shown_as, ingestor)
    with wiring.replay_ports(settings, tell_progress) as ports:
        bad = False
        for one in per_topic(spec, ports.lake):
            done = add(one, ports, dry_run=dry_run)
            bad = bad or bool(done.bad)
            if as_json_:
                print(json.dumps(done.data()), flush=True)  # noqa: T201
                continue
            for line in result_lines(done, dry_run=dry_run):
                unwrapped().print(Text(visible(line)))
    raise typer.Exit(FAILED if bad else OK)


def spec_to_replay(
    settings: Settings, file: Path | None, shown_as: str | None, ingestor: str | None
) -> IngestorSpec:
    """The spec in a file, or of a declared ingestor.

    Raises:
        InvalidError: both or none is named, or the file cannot be read.
        InvalidSpecError: it is not a spec.
        NotFoundError: there is no such ingestor.
    """
    if (file is None) == (ingestor is None):
        raise InvalidError("name the ingestor's YAML file, or --ingestor NAME as scripts/tarn get lists it")
    if file is not None:
        return read_spec(file, shown_as)
    found = wiring.specs(settings).get(str(ingestor))
    if found is None or found.gone:
        raise NotFoundError(
            f"there is no ingestor {ingestor}; scripts/tarn get lists those that there are, and the file of "
            "one that was deleted can be named instead"
        )
    return found.spec


def per_topic(spec: IngestorSpec, ports: LakePorts) -> Sequence[IngestorSpec]:
    """The spec of each topic that its table has a stream of; itself if it names one topic.

    Raises:
        NoSuchTableError: the table does not exist.
        InvalidError: the table has no stream of the spec.
    """
    from tarn.ingest.lake_files import streams_of

    kafka = spec.spec.source.kafka
    if kafka.topic is not None:
        return (spec,)
    table = str(spec.spec.table)
    streams, _ = streams_of(ports.tables.state(table), table=table)
    topics = sorted({offsets.source.topic for offsets in streams.values()})
    found = [one for one in spec.per_topic(topics) if one.stream in streams]
    if not found:
        raise InvalidError(
            f"table {table} has no stream of {spec.name} ({kafka}); its streams: "
            f"{', '.join(streams) or 'none'}",
            table=table,
        )
    return found


def read_spec(file: Path, shown_as: str | None) -> IngestorSpec:
    """The spec in a file, or in stdin.

    Raises:
        InvalidError: the file cannot be read.
        InvalidSpecError: it is not a spec.
    """
    shown = shown_as or str(file)
    return parse_spec(read_text(file, shown), file=shown)


def read_text(file: Path, shown: str, *, wanted: str = "name a readable YAML file") -> str:
    """The text of a file, or of stdin.

    Args:
        file: the file; - is stdin.
        shown: its name for people.
        wanted: what to do if it cannot be read.

    Raises:
        InvalidError: it cannot be read.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        # Without a locale, as in a container, stdin takes any bytes: what is no text shows here.
        text.encode()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidError(f"could not read {shown}: {reason}; {wanted}") from error
    return text


def groups(ports: LakePorts) -> list[Group]:
    """The registered dead letters of all streams, by table, stream and topic."""
    found: dict[tuple[str, str, str], Group] = {}
    for table, rows in _registered(ports, LISTED):
        for row in rows:
            key = table, row["ingestor"], row["source"]
            at, before = row["decoded_at"], found.get(key)
            newer = before is None or at >= before.last
            found[key] = Group(
                table=table,
                stream=row["ingestor"],
                topic=row["source"],
                letters=1 if before is None else before.letters + 1,
                first=at if before is None else min(at, before.first),
                last=at if before is None or newer else before.last,
                reason=row["reason"] if before is None or newer else before.reason,
            )
    return [group for _, group in sorted(found.items())]


def newest(ports: LakePorts, stream: str, last: int) -> list[Mapping[str, Any]]:
    """The dead letters of a stream that were decoded last, in this order.

    Raises:
        InvalidError: the stream has none.
    """
    found: list[Mapping[str, Any]] = []
    streams: set[str] = set()
    for _, rows in _registered(ports, SHOWN):
        held = list(rows)
        streams |= {row["ingestor"] for row in held}
        found += [row for row in held if row["ingestor"] == stream]
        found.sort(key=lambda row: (row["decoded_at"], row["partition"], row["offset"]))
        del found[:-last]
    if not found:
        raise InvalidError(
            f"stream {stream!r} has no dead letters; those that have some: "
            f"{', '.join(sorted(streams)) or 'none'}"
        )
    return found


def _registered(
    ports: LakePorts, columns: Sequence[str]
) -> Iterator[tuple[str, Iterable[Mapping[str, Any]]]]:
    """Yield the rows of each file of each dead-letter table."""
    from tarn.cli.replay import FILES_AHEAD, live_rows
    from tarn.ingest.lake_files import LiveFiles, all_tables, read_files

    for name, state in all_tables(ports):
        if marker_property(MARKER_KEY) not in state.properties:
            continue
        live = LiveFiles(name, state, ports)

        def read(file: FileEntry, live: LiveFiles = live) -> pa.Table:
            return live_rows(ports, file, live.deleted(file), columns)

        for _, rows in read_files(ports, live.data, read, what="dead-letter files", ahead=FILES_AHEAD):
            yield name, rows.to_pylist()


def as_object(row: Mapping[str, Any]) -> dict[str, Any]:
    """A dead letter as JSON types; key and value as text, or base64 in `keyBase64` and `valueBase64`."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name not in ("key", "value") or value is None:
            found[name] = plain(value)
            continue
        try:
            found[name] = value.decode("utf-8")
        except UnicodeDecodeError:
            found[f"{name}Base64"] = plain(value)
    return found


def as_lines(row: Mapping[str, Any]) -> list[str]:
    """A dead letter for people: its message, the reason, and the value, cut if it is long."""
    value = "<null>" if row["value"] is None else row["value"].decode("utf-8", "backslashreplace")
    cut = f" … ({len(value):,} characters)" if len(value) > VALUE_CHARS_MAX else ""
    lines = [
        f"{row['source']}/{row['partition']}/{row['offset']}, decoded {row['decoded_at']:%Y-%m-%d %H:%M:%S}Z",
        f"  reason  {row['reason']}",
        f"  value   {value[:VALUE_CHARS_MAX]}{cut}",
    ]
    return [visible(line) for line in lines]


def result_lines(done: Replayed, *, dry_run: bool) -> list[str]:
    """What a replay did, for people."""
    lines = [
        f"{done.letters:,} dead letters of stream {done.stream}: {done.already:,} were rows of {done.table} "
        f"already, {done.rows:,} {'would become' if dry_run else 'became'} rows, {done.bad.total():,} cannot"
    ]
    if done.snapshots:
        lines.append(f"added by snapshot {', '.join(map(str, done.snapshots))}")
    if done.joined:
        lines.append(
            f"{done.joined:,} of them lie in joined runs of what retention states as dropped: no file shows "
            "a row of them, so they were tried; any that was a row before goes again by its age"
        )
    if done.older:
        lines.append(f"{done.older:,} more are of an earlier table of this stream, and are left alone")
    lines += [f"  {count:,}: {reason}" for reason, count in done.bad.most_common(5)]
    if len(done.bad) > 5:
        lines.append(f"  and others, for {len(done.bad) - 5:,} more reasons")
    return lines


def _group_data(group: Group) -> dict[str, object]:
    return {
        "table": group.table,
        "stream": group.stream,
        "topic": group.topic,
        "letters": group.letters,
        "first": group.first,
        "last": group.last,
        "reason": group.reason,
    }
