"""scripts/tarn: run a command in the `cli` container and exit with its exit code.

A replay started by the user (`demo load`, `demo replay`) first stops the one that scripts/up started, because
two at once would send the same events; its options are validated before that. Its container has a label, by
which scripts/up finds it and starts no other. `status` also receives the state of the containers as the
engine reports it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from tarn_host import keeper
from tarn_host.console import StopError, stopped
from tarn_host.stack import base, engine, lifecycle, project, run_once

WRONG_INPUT = 2
FILE_COMMANDS = (("apply",), ("check-spec",), ("dead-letters", "replay"))
"""Commands whose last argument, or that of -f, is a file of the host; `apply` takes it by -f only."""
FILE_OPTIONS = ("-f", "--file")
PLAYS = (["demo", "load"], ["demo", "replay"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(words)
    except StopError as error:
        return stopped(error)
    except OSError as error:
        return stopped(project.hindered(error))
    except KeyboardInterrupt:
        return stopped(StopError("stopped by the keyboard", "run the command again", 130))


def _run(words: list[str]) -> int:
    here = project.load()
    image = f"tarn/services:{here.name}"
    if not base.is_there(image):
        now = engine.look()
        what = (
            f"the image {image} is not there" if now.server else f"no container engine answers: {now.error}"
        )
        raise StopError(what, "run scripts/up first")
    work = keeper.on_host(words)
    if work is not None:
        return work(here, words)
    if is_play(words) and lifecycle.replay_runs(here):
        # Invalid options must not stop the running replay.
        refused = run_once.run(here, "cli", [*words, "--check"], stdin=subprocess.DEVNULL)
        if refused:
            return refused
        lifecycle.stop_replay(here)
        print(
            "The replay of scripts/up is stopped; the next scripts/up goes on with it.",
            file=sys.stderr,
            flush=True,
        )
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    options = ["--env", f"TARN_CONTAINERS={containers(lifecycle.services(here))}"] if is_status(words) else []
    if is_play(words):
        options = ["-l", lifecycle.PLAY]  # --labels and, in newer releases of Compose, --label
    try:
        words, stdin = with_file(words)
    except OSError as error:
        what = f"could not read {error.filename}: {error.strerror}"
        raise StopError(what, "name a readable YAML file", code=WRONG_INPUT) from None
    if stdin is None:
        return run_once.run(here, keeper.service_of(words), words, options=options, terminal=terminal)
    with stdin:
        return run_once.run(here, keeper.service_of(words), words, options=options, stdin=stdin)


def with_file(words: Sequence[str]) -> tuple[list[str], IO[bytes] | None]:
    """The container's arguments and stdin for a command; those of FILE_COMMANDS read a file of the host.

    The container has no access to folders of the host. Any other command is returned as it is, without stdin.

    Raises:
        OSError: the file does not exist or cannot be read.
        StopError: several files are named for `apply`.
    """
    words = list(_apart(words))
    plain = [(at, word) for at, word in enumerate(words) if not word.startswith("-")]
    names = tuple(word for _, word in plain)
    command = next((each for each in FILE_COMMANDS if names[: len(each)] == each), None)
    named_otherwise = any(word.partition("=")[0] == "--ingestor" for word in words)
    if command is None or len(plain) == len(command) or words[-1] == "--help" or named_otherwise:
        return words, None
    named = [at + 1 for at, word in enumerate(words[:-1]) if word in FILE_OPTIONS]
    if command == ("apply",) and not named:
        return words, None
    if len(named) > 1:
        raise StopError(
            f"{len(named)} files for one apply: {', '.join(words[at] for at in named)}",
            "apply them one after the other",
            code=WRONG_INPUT,
        )
    at = named[0] if named else plain[-1][0]
    file, first = words[at], at - 1 if named else at
    if file == "-":
        return words, None
    return [*words[:first], "--shown-as", file, *words[first:at], "-", *words[at + 1 :]], open(file, "rb")


def _apart(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command; `-fFILE` and `--file=FILE` of `apply` are two. Pure."""
    applies = next((word for word in words if not word.startswith("-")), "") == "apply"
    for word in words:
        if applies and word.startswith("--file="):
            yield from ("--file", word.removeprefix("--file="))
        elif applies and word.startswith("-f") and word != "-f":
            yield from ("-f", word.removeprefix("-f"))
        else:
            yield word


def is_play(words: Sequence[str]) -> bool:
    """Whether the command sends the flight events. Pure."""
    plain = [word for word in words if word != "--debug"]
    return plain[:2] in PLAYS and "--help" not in plain


def is_status(words: Sequence[str]) -> bool:
    """Whether the command is `status`, which shows the state of the lake. Pure."""
    return [word for word in words if word != "--debug"][:1] == ["status"]


def containers(services: Iterable[lifecycle.Service]) -> str:
    """The state of each service's container, or containers, as JSON in the form that `status` reads. Pure."""
    own: dict[str, list[lifecycle.Service]] = {}
    for service in services:
        own.setdefault(service.name, []).append(service)
    return json.dumps(
        {
            name: {
                "running": any(one.state == "running" for one in mine),
                "good": all(one.good for one in mine),
                "words": _words(mine),
            }
            for name, mine in own.items()
        }
    )


def _words(mine: Sequence[lifecycle.Service]) -> str:
    """The state of a service; if it has several containers, of those that are not well, with their number."""
    bad = [one for one in mine if not one.good and one.words() != "starting"] or [
        one for one in mine if not one.good
    ]
    if not bad or len(mine) == 1 or bad[0].words() == "starting":
        return (bad or mine)[0].words()
    return f"{len(bad)} of {len(mine)} {bad[0].words()}"


if __name__ == "__main__":
    raise SystemExit(main())
