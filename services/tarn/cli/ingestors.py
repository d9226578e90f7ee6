"""Commands on declared ingestors: apply, get, describe, delete and scale (docs/ingestors.md)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.text import Text

from tarn.cli import wiring
from tarn.cli.formats import visible
from tarn.cli.letters import read_text
from tarn.cli.render import add_row, new_table, unwrapped
from tarn.cli.settings import Settings
from tarn.controller.declaring import (
    IN_PROGRESS,
    Shown,
    everything,
    gone,
    one,
    put,
    request_deletion,
    unreadable,
)
from tarn.core.control.declared import Declared, Stamp, scaled
from tarn.core.errors import InvalidSpecError, NotFoundError, TarnError
from tarn.core.exit_codes import FAILED
from tarn.core.spec import IngestorSpec, parse_document

if TYPE_CHECKING:
    from tarn.core.control.registry import SpecRegistry

app = typer.Typer()

WAIT_S = 0.5
STALE_S = 60
"""Age of a status from which on the command says that ingest may not run."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
Name = Annotated[str, typer.Argument(help="Name of the ingestor: metadata.name of its spec.")]
TakeOver = Annotated[
    bool,
    typer.Option("--take-over", help="Change it although it belongs to a file; the file changes it no more."),
]
Wait = Annotated[
    int, typer.Option(min=0, max=3_600, help="Wait so many seconds at most until it runs as declared.")
]
WaitForEnd = Annotated[
    int, typer.Option("--wait", min=0, max=3_600, help="Wait so many seconds at most until it has ended.")
]


@app.command()
def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="A YAML file with one ingestor; - reads stdin.")],
    take_over: TakeOver = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write it although the stored object is unreadable.")
    ] = False,
    wait: Wait = 0,
    shown_as: Annotated[
        str | None, typer.Option("--shown-as", hidden=True, help="The name that messages show.")
    ] = None,
) -> None:
    """Create an ingestor, or change it to what a file says; ingest starts or replaces its writers."""
    shown = shown_as or str(file)
    settings = Settings.read()
    specs = wiring.specs(settings)
    made, what = put(specs, parse_document(read_text(file, shown), file=shown), shown, take_over, replace)
    print(f"ingestor {made.name} {what}, generation {made.generation}: {summary(made.spec)}")  # noqa: T201
    follow(settings, specs, made.name, wait)


@app.command()
def get(
    name: Annotated[str | None, typer.Argument(help="Only this one.", show_default=False)] = None,
    as_json_: Json = False,
    as_yaml_: Annotated[
        bool, typer.Option("--yaml", help="Print the spec of one, to be applied again.")
    ] = False,
) -> None:
    """List the declared ingestors: whether they run as declared, how far behind they are."""
    specs = wiring.specs(Settings.read())
    if as_yaml_:
        if name is None:
            raise InvalidSpecError("--yaml prints one spec: name the ingestor")
        print(yaml.safe_dump(dict(one(specs, name).declared.document), sort_keys=False), end="")  # noqa: T201
        return
    found = [one(specs, name)] if name is not None else everything(specs)
    if as_json_:
        print(json.dumps([each.to_json() for each in found]))  # noqa: T201
    else:
        print_list(found)
    for line in unreadable(specs):
        print(line, file=sys.stderr)  # noqa: T201


@app.command()
def describe(name: Name, as_json_: Json = False) -> None:
    """Show one ingestor: conditions with reasons, writers, offsets behind, and its spec."""
    found = one(wiring.specs(Settings.read()), name)
    if as_json_:
        print(json.dumps(found.to_json()))  # noqa: T201
        return
    out = unwrapped()
    for line in lines_of(found, now=datetime.now(UTC)):
        out.print(Text(visible(line)))
    out.print()
    out.print(Text(yaml.safe_dump(dict(found.declared.document), sort_keys=False).rstrip()))


@app.command()
def delete(name: Name, wait: WaitForEnd = 0) -> None:
    """Delete an ingestor: its writers finish their commits and end. Table, offsets and topic stay."""
    settings = Settings.read()
    specs = wiring.specs(settings)
    made = request_deletion(specs, name)
    print(  # noqa: T201
        f"ingestor {name} is being deleted: its writers finish their commits and end. Its table stays, with "
        "its offsets: the same spec goes on there"
    )
    if made.file is not None:
        print(  # noqa: T201
            f"Its file {made.file} is still in the spec folder: the next start of ingest applies it again. "
            "Remove the file too, if the ingestor is not to come back"
        )
    wake(settings)
    if wait and not _until(lambda: gone(specs, name), wait):
        print(f"it has not ended within {wait} s; scripts/tarn describe {name} shows why")  # noqa: T201
        raise typer.Exit(FAILED)


@app.command()
def scale(
    name: Name,
    replicas: Annotated[int, typer.Argument(help="Readers of each topic.")],
    take_over: TakeOver = False,
    wait: Wait = 0,
) -> None:
    """Change the number of replicas of an ingestor."""
    settings = Settings.read()
    specs = wiring.specs(settings)

    def make(found: Declared | None, stamp: Stamp) -> Declared:
        if found is None:
            raise NotFoundError(f"there is no ingestor {name}; scripts/tarn get lists those that there are")
        return scaled(found, replicas, stamp=stamp, take_over=take_over)

    made = specs.change(name, make)
    print(f"ingestor {name} has replicas: {replicas}, generation {made.generation}")  # noqa: T201
    follow(settings, specs, name, wait)


def summary(spec: IngestorSpec) -> str:
    """From where to where."""
    return f"{spec.spec.source.kafka} -> {spec.spec.table}"


def print_list(found: list[Shown]) -> None:
    """Print one line per ingestor."""
    table = new_table(
        "ingestor", "state", "ready>", "generation>", "lag>", "rows>", "last commit", "table", "from"
    )
    for each in found:
        status = each.status or {}
        at_ms = (status.get("lastCommit") or {}).get("atMs")
        lag = status.get("lag")
        add_row(
            table,
            each.declared.name,
            str(each.ready["reason"]),
            f"{status.get('readyReplicas', 0)}/{status.get('replicas', '?')}",
            str(each.declared.generation),
            "?" if lag is None else f"{lag:,}",
            f"{status.get('rows', 0):,}",
            "" if at_ms is None else _time(at_ms),
            str(status.get("table", "")),
            each.declared.file or "by hand",
        )
    unwrapped().print(table if found else "no ingestor is declared; scripts/tarn apply -f FILE declares one")


def lines_of(found: Shown, *, now: datetime) -> list[str]:
    """What `describe` says before the spec."""
    there, status = found.declared, found.status or {}
    lines = [
        f"{there.name}: {found.ready['reason']}",
        f"owner: {there.file or 'applied by hand'}; generation {there.generation} of "
        f"{_time(there.changed_ms)}, "
        f"ingest has seen {status.get('observedGeneration', 'none')}",
    ]
    if there.deleting_ms is not None:
        lines.append(f"its deletion was requested at {_time(there.deleting_ms)}")
    if status:
        age_s = max(0, int(now.timestamp() - status["atMs"] / 1_000))
        lag = status.get("lag")
        at_ms = status["lastCommit"]["atMs"]
        lines += [
            f"table {status['table']}, topics {', '.join(status['topics']) or 'none yet'}; "
            f"{status['readyReplicas']} of {status['replicas']} readers run",
            f"lag {'unknown' if lag is None else f'{lag:,}'}; since its writers started {status['rows']:,} "
            f"rows and {status['badRecords']:,} bad records; last commit "
            f"{'none yet' if at_ms is None else _time(at_ms)}",
            f"status of {_time(status['atMs'])}"
            + (f", {age_s} s ago: figures that do not change are not written" if age_s > STALE_S else ""),
        ]
    shown = [one for one in status.get("conditions", ()) if one["type"] != "Ready"]
    for condition in (*shown, found.ready):
        text = f": {condition['message']}" if condition["message"] else ""
        since = _time(condition["sinceMs"])
        lines.append(f"{condition['type']}: {condition['status']}, {condition['reason']} since {since}{text}")
    for writer in status.get("writers", ()):
        died = f", died {writer['died']} times in a row" if writer["died"] else ""
        lines.append(f"writer {writer['id']}: {writer['phase']}{died}")
    return lines


def follow(settings: Settings, specs: SpecRegistry, name: str, wait_s: int) -> None:
    """Have ingest look now; then wait until the ingestor runs as declared, if that is asked for."""
    wake(settings)
    if not wait_s:
        return

    ready: Mapping[str, Any] = {}

    def settled() -> bool:
        # Kept: what follows "Running" may be a reader that gets its share, which is no failure.
        nonlocal ready
        ready = one(specs, name).ready
        return bool(ready["status"]) or ready["reason"] not in IN_PROGRESS

    _until(settled, wait_s)
    print(f"{ready['reason']}{': ' if ready['message'] else ''}{visible(ready['message'])}")  # noqa: T201
    if not ready["status"]:
        raise typer.Exit(FAILED)


def _until(done: Callable[[], bool], wait_s: float) -> bool:
    late_s = time.monotonic() + wait_s
    while not done():
        if time.monotonic() >= late_s:
            return False
        time.sleep(WAIT_S)
    return True


def wake(settings: Settings) -> None:
    """Have ingest look at the store now; if it does not answer, it looks when it runs again."""
    try:
        wiring.wake_ingest(settings)
    except TarnError as e:
        print(f"ingest does not answer, and takes this over when it runs: {e.message}")  # noqa: T201


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, tz=UTC):%Y-%m-%d %H:%M:%S}Z"
