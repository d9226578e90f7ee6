"""The commands: read options, call, print. What they do is in the modules they call.

Exit codes: 0 done; 1 the answer is no (a canary that did not arrive, a service that is down); 2 wrong input
or setting; 3 something does not answer; 4 access refused; 5 stored state needs a person; 70 a defect of Tarn;
130 stopped by Ctrl-C.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from tarn.cli import access, auditor, draft, ingestors, keeper, letters, table_log, tables, topics, wiring
from tarn.cli.canary import Limits, fly
from tarn.cli.extensions import ExtensibleGroup
from tarn.cli.formats import TABLE_COLUMNS_MAX, as_csv, as_json, page, visible
from tarn.cli.hostenv import exports, host_env
from tarn.cli.ports import Clock, Tell
from tarn.cli.render import print_report, print_status, report_data
from tarn.cli.settings import Settings, load_secrets
from tarn.cli.status import as_data, gather
from tarn.core.errors import InvalidError, NotFoundError, TarnError
from tarn.core.exit_codes import BUG, FAILED, OK, exit_code

app = typer.Typer(
    name="tarn",
    cls=ExtensibleGroup,
    help="Tarn's command line. Every command says what is wrong and what to do; --debug shows where.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(auditor.app)
app.add_typer(tables.app)
app.add_typer(topics.app)
app.add_typer(draft.app)
app.add_typer(ingestors.app)
app.add_typer(table_log.app)
app.add_typer(letters.app)
app.add_typer(access.app)
app.add_typer(keeper.app)

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a stack trace with an error.")] = False,
) -> None:
    """Take the options that come before the command."""


@app.command()
def canary(
    as_json_: Json = False,
    note: Annotated[str, typer.Option(help="A text to send along.", show_default=False)] = "canary",
    timeout: Annotated[
        float, typer.Option(min=1, max=3600, help="Seconds for everything.")
    ] = Limits().total_s,
    from_stdin: Annotated[
        bool,
        typer.Option(
            "--ready-from-stdin", hidden=True, help="Use a service when stdin has named it, or ends."
        ),
    ] = False,
) -> None:
    """Send one row through Kafka and ingest and read it back with every engine."""
    tell = _teller()
    ready_names = sys.stdin if from_stdin else None
    flight = wiring.flight(Settings.read(), Limits(total_s=timeout), tell, ready_names=ready_names)
    report = fly(flight, wiring.canary_row(note))
    if as_json_:
        print(json.dumps(report_data(report)))  # noqa: T201
    else:
        print_report(report, _out(), _err())
    raise typer.Exit(OK if report.ok else FAILED)


@app.command()
def status(as_json_: Json = False) -> None:
    """Show services, layers and how fresh they are, ingestors with their lag, and tables."""
    seen = gather(wiring.sources(Settings.read()), clock=Clock(), at=datetime.now(UTC))
    if as_json_:
        print(json.dumps(as_data(seen)))  # noqa: T201
    else:
        print_status(seen, _out(), _err())
    raise typer.Exit(OK if seen.ok else FAILED)


@app.command()
def sql(
    statement: Annotated[str, typer.Argument(help="One SQL statement; - reads it from stdin.")],
    engine: Annotated[str, typer.Option(help="trino, spark or duckdb (reads only).")] = "trino",
    as_json_: Json = False,
    as_csv_: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
    rows_max: Annotated[int, typer.Option(min=1, max=1_000_000, help="Rows to print at most.")] = 1_000,
) -> None:
    """Run one statement and print its rows."""
    if as_json_ and as_csv_:
        raise InvalidError("--json and --csv at once: choose one")
    if statement == "-":
        statement = letters.read_text(Path("-"), "the statement from stdin", wanted="write it in UTF-8")
    if not statement.strip():
        raise InvalidError('no statement; write one, such as tarn sql "SELECT count(*) FROM ops.canary"')
    _hear_a_stop()
    try:
        answer = wiring.engine(Settings.read(), engine).query(statement, rows_max=rows_max)
    except NotFoundError as error:
        # To every engine a name that is not there is a mistake in the statement.
        raise InvalidError(error.message) from error
    if as_json_:
        print(as_json(answer))  # noqa: T201
    elif as_csv_:
        print(as_csv(answer), end="")  # noqa: T201
    else:
        out = _out()
        for part in page(answer, out):
            out.print(part, soft_wrap=not isinstance(part, Table))
    if answer.truncated:
        _err().print(f"Only the first {rows_max} rows are shown; ask for more with --rows-max.")


@app.command()
def env(
    shell: Annotated[str, typer.Option(help="sh (also for bash and zsh) or fish.")] = "sh",
    as_json_: Json = False,
) -> None:
    """Print settings for clients on the host; use it as: eval "$(scripts/tarn env)"."""
    settings = Settings.read()
    variables = host_env(settings, load_secrets(settings.secrets_dir), settings.kafka_login())
    print(json.dumps(variables) if as_json_ else exports(variables, shell).rstrip("\n"))  # noqa: T201


@app.command("check-spec")
def check_spec(
    file: Annotated[Path, typer.Argument(help="A YAML file with one ingestor; - reads stdin.")],
    as_json_: Json = False,
    shown_as: Annotated[
        str | None, typer.Option("--shown-as", hidden=True, help="The name that messages show.")
    ] = None,
) -> None:
    """Check an ingestor spec without running it."""
    shown = shown_as or str(file)
    from tarn.core.creation import columns_of_writer

    spec = letters.read_spec(file, shown)
    body = spec.spec
    if as_json_:
        print(spec.model_dump_json(by_alias=True))  # noqa: T201
    else:
        fields = body.fields or columns_of_writer(body, file=shown)
        own = "columns of the first messages" if body.infers else "the table's columns"
        columns = ", ".join(f"{field.name} {field.type}" for field in fields) or own
        print(f"{shown}: ok. {spec.name}: {body.source.kafka} -> {body.table} ({columns})")  # noqa: T201


@app.command()
def version() -> None:
    """Print Tarn's version."""
    print(f"tarn {package_version('tarn')}")  # noqa: T201


def _hear_a_stop() -> None:
    """A container that is stopped ends as by Ctrl-C: the engine's work is called off."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def leave(code: int) -> NoReturn:
    """End the process, even if a client library's thread still waits for an answer nobody wants any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None, *, end: Callable[[int], NoReturn] = leave) -> NoReturn:
    """Run one command and end the process with its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    try:
        _require_utf8(arguments)
        app(args=arguments, prog_name="tarn")
        code = OK
    except TarnError as error:
        code = _failed(error, error.message, exit_code(error), debug=debug)
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else OK
    except Exception as error:  # noqa: BLE001 - the last resort of a process, reported as a defect
        message = (
            f"unexpected {type(error).__name__}: {error}. This is a defect of Tarn: run the command again as "
            "tarn --debug … and report what it prints"
        )
        code = _failed(error, message, BUG, debug=debug)
    end(code)


def _require_utf8(arguments: Sequence[str]) -> None:
    """Python takes any bytes as an argument; none of the services does.

    Raises:
        InvalidError: an argument is not UTF-8.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise InvalidError(f"the argument {argument!r} is not UTF-8; write it in UTF-8") from error


def _failed(error: Exception, message: str, code: int, *, debug: bool) -> int:
    if debug:
        print(visible("".join(traceback.format_exception(error))), end="", file=sys.stderr)  # noqa: T201
    print(visible(f"tarn: {message}"), file=sys.stderr)  # noqa: T201
    return code


def _out() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else TABLE_COLUMNS_MAX)


def _err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def _teller() -> Tell:
    console = _err()
    return lambda text: console.print(text, style="dim", markup=False)


if __name__ == "__main__":
    main()
