"""scripts/down: stop the services; remove their data or stop the engine only on request."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tarn_host import shell
from tarn_host.arguments import Parser
from tarn_host.console import StopError, agree, is_terminal, line, stopped
from tarn_host.stack import engine, firewall, lifecycle, project
from tarn_host.stack.lock import only_one

_GONE = ("not found", "is the docker daemon running", "no such file", "connection refused")
_LOST = "all tables, the log, the secrets and the notebooks in work/"
HELP = "Stop Tarn. Data, images and the engine stay unless asked otherwise. Safe to run again."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts/down and return its exit code."""
    found = Parser(prog="scripts/down", description=HELP)
    found.add_argument(
        "--purge",
        action="store_true",
        help="also remove this clone's data: tables, log, secrets, your notebooks (asks)",
    )
    found.add_argument(
        "--engine", action="store_true", help="also stop the engine, if scripts/up of this clone started it"
    )
    found.add_argument("--yes", action="store_true", help="do not ask")
    options = found.parse_args(arguments)
    try:
        with only_one(project.load(), needs_room=False):
            down(purge=options.purge, stop_engine=options.engine, assume_yes=options.yes)
    except StopError as error:
        return stopped(error)
    except OSError as error:
        return stopped(project.hindered(error))
    except KeyboardInterrupt:
        given = sys.argv[1:] if arguments is None else arguments
        # A purge may have removed some volumes, and not the others.
        again = " ".join(["scripts/down", *given])
        return stopped(StopError("stopped by the keyboard", f"run {again} again", 130))
    return 0


def consent(name: str, assume_yes: bool) -> None:
    """Ask before removing data; without a terminal, --yes is required.

    Raises:
        StopError: consent was not given.
    """
    if not assume_yes and not is_terminal():
        raise StopError(
            f"--purge removes {_LOST} of {name}, and there is no terminal to ask on; nothing was done",
            "add --yes if that is wanted; scripts/down without --purge only stops",
            2,
        )
    if not agree(f"Remove {_LOST} of {name}?", assume_yes):
        raise StopError("nothing was removed", "run scripts/down without --purge to only stop")


def down(*, purge: bool, stop_engine: bool, assume_yes: bool) -> None:
    """Stop the services and, if requested, remove their data and stop the engine.

    Args:
        purge: also remove this clone's data.
        stop_engine: also stop the engine, if this clone's scripts started it.
        assume_yes: do not ask before removing data.

    Raises:
        StopError: the request was refused or a step failed.
    """
    here = project.load()
    now = engine.look()
    if now.server is None:
        if purge:
            raise StopError(
                "the data cannot be removed while no engine answers", "start the engine, then run this again"
            )
        if not _is_gone(now.error):
            raise StopError(
                f"no engine answers here, so nothing was stopped: {now.error}",
                "if one runs, its services go on: let this user and this terminal reach it (the group "
                "docker, DOCKER_HOST), then run this again",
            )
        line("no engine runs, so no service does")
    elif now.compose is None:
        raise StopError(
            "Docker Compose is not there, so the services cannot be stopped",
            "install it, or run scripts/up once",
        )
    else:
        if purge:
            consent(here.name, assume_yes)
        lifecycle.stop(here, purge)
        firewall.remove(here.name)
        line(f"{here.name} is stopped; its data is {'removed' if purge else 'kept'}")
    if stop_engine:
        others = (
            shell.capture(["docker", "ps", "--format", "{{.Names}}"], timeout_s=20).out.split()
            if now.server
            else []
        )
        if others and engine.is_mine_alive():
            raise StopError(
                f"the engine still runs other containers: {', '.join(others[:5])}",
                "stop those first, then run this again",
            )
        line(engine.stop())


def _is_gone(error: str) -> bool:
    """Whether a client's words mean that no engine runs: it is not there, or nobody listens."""
    words = error.lower()
    if "permission denied" in words or os.environ.get("DOCKER_HOST"):
        return False
    return any(text in words for text in _GONE)


if __name__ == "__main__":
    raise SystemExit(main())
