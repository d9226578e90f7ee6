"""scripts/tarn: run a command in the `cli` container; its exit code is this script's.

A play of one's own (`demo load`, `demo replay`) first ends the one that scripts/up started: two at a time
would send the same events. Its options are looked at before that. `status` is given what the engine says of
the containers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence

from tarn_host import base, engine, keeper, oneshot, project, stack
from tarn_host.say import StopError, stopped

PLAYS = (["demo", "load"], ["demo", "replay"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        here = project.load()
        image = f"tarn/services:{here.name}"
        if not base.is_there(image):
            now = engine.look()
            what = (
                f"the image {image} is not there"
                if now.server
                else f"no container engine answers: {now.error}"
            )
            raise StopError(what, "run scripts/up first")
        work = keeper.on_host(words)
        if work is not None:
            return work(here, words)
        if is_play(words) and stack.replay_runs(here):
            refused = oneshot.run(here, "cli", [*words, "--check"], stdin=subprocess.DEVNULL)
            if refused:
                return refused
            stack.stop_replay(here)
            print(
                "The replay of scripts/up is stopped; the next scripts/up goes on with it.",
                file=sys.stderr,
                flush=True,
            )
    except StopError as error:
        return stopped(error)
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    told = ["--env", f"TARN_CONTAINERS={containers(stack.services(here))}"] if is_status(words) else []
    return oneshot.run(here, keeper.service_of(words), words, options=told, terminal=terminal)


def is_play(words: Sequence[str]) -> bool:
    """Whether the command sends the events of the flights. Pure."""
    plain = [word for word in words if word != "--debug"]
    return plain[:2] in PLAYS and "--help" not in plain


def is_status(words: Sequence[str]) -> bool:
    """Whether the command shows the state of the lake. Pure."""
    return [word for word in words if word != "--debug"][:1] == ["status"]


def containers(services: Iterable[stack.Service]) -> str:
    """The state of each service's container, in the form that the command reads. Pure."""
    return json.dumps(
        {
            service.name: {
                "running": service.state == "running",
                "good": service.good,
                "words": service.words(),
            }
            for service in services
        }
    )


if __name__ == "__main__":
    raise SystemExit(main())
