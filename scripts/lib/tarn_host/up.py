"""scripts/up: from a fresh clone to a canary row read back by every engine, and the flights demo."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tarn_host import shell
from tarn_host.arguments import Parser
from tarn_host.console import Phases, Problem, StopError, agree, line, problem, stopped
from tarn_host.stack import base, checks, engine, engine_kind, firewall, images, lifecycle, project
from tarn_host.stack.canary import Canary
from tarn_host.stack.lock import only_one
from tarn_host.stack.project import ROOT, Project

DEMO_WAIT_S = 150
DEMO_TIMEOUT_S = DEMO_WAIT_S + 60
HELP = """Start Tarn: check this machine, get what is missing, build the images, start the services, send a
row through Kafka and ingest that pyiceberg, Trino and Spark read back, and start the demo: a year of real
flights is played into the lake. Safe to run again at any time."""


def parser() -> Parser:
    """The command-line parser of scripts/up."""
    found = Parser(prog="scripts/up", description=HELP)
    found.add_argument(
        "--yes", action="store_true", help="do not ask before installing or starting an engine"
    )
    found.add_argument(
        "--pull",
        choices=["missing", "never"],
        default="missing",
        help="never: use no network at all; everything must be there from an earlier run",
    )
    found.add_argument(
        "--offline", dest="pull", action="store_const", const="never", help="the same as --pull never"
    )
    found.add_argument(
        "--refresh",
        action="store_true",
        help="make the base image again, and with it every image, from the Debian packages of today",
    )
    found.add_argument(
        "--no-canary", dest="canary", action="store_false", help="leave out the row at the end"
    )
    found.add_argument(
        "--no-demo",
        dest="demo",
        action="store_false",
        help="play no flights; ends the replay of an earlier run (TARN_DEMO=off in .env: always)",
    )
    size = found.add_mutually_exclusive_group()
    size.add_argument(
        "--small",
        dest="profile",
        action="store_const",
        const="small",
        help="without Spark, Trino and what needs them; remembered until --full",
    )
    size.add_argument(
        "--full", dest="profile", action="store_const", const="full", help="with everything again"
    )
    found.add_argument(
        "--ports",
        metavar="FIRST",
        help="publish at FIRST and the ports after it, remembered in .env; `default` forgets that",
    )
    found.add_argument(
        "--timings", metavar="FILE", type=Path, help="write the time of each phase to FILE as JSON"
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts/up and return its exit code."""
    options = parser().parse_args(arguments)
    phases = Phases()
    outcome = "failed"
    try:
        own = project.load()
        is_demo_on(own.settings)
        if options.refresh and options.pull == "never":
            raise StopError("--refresh fetches packages, and --pull never forbids it", "choose one", 2)
        chosen = choices(options.profile, options.ports)
        require_profile(own, options.profile)
        with only_one(own), ExitStack() as ends:
            here = prepare(
                phases,
                assume_yes=options.yes,
                offline=options.pull == "never",
                ports=True,
                chosen=chosen,
                refresh=options.refresh,
            )
            config = images.compose_config(here)
            canary = ends.enter_context(Canary(here)) if options.canary else None
            with phases.phase("start") as notes:
                firewall.close(here, config)
                changed = project.make_readable(project.SPECS_DIR)
                if changed:
                    line(f"    made readable for the containers: {', '.join(changed)}")
                notes.append(lifecycle.start(here, config, canary.look if canary else None))
            if canary:
                with phases.phase("canary"):
                    canary.finish()
            plays = options.demo and is_demo_on(here.settings) and here.profile != "small"
            if here.profile != "small":
                with phases.phase("pipeline") as notes:
                    if plays:
                        lifecycle.start_replay(here)
                    notes.append(lifecycle.start_last(here, config))
            if plays:
                with phases.phase("demo"):
                    demo(here)
            elif lifecycle.stop_replay(here):
                line("    the replay of an earlier run is stopped")
            open_edge = firewall.close(here, config).problem
        outcome = "done"
    except StopError as error:
        return stopped(error)
    except OSError as error:
        return stopped(project.hindered(error))
    except KeyboardInterrupt:
        return stopped(
            StopError("stopped by the keyboard", "run scripts/up again to go on, or scripts/down to end", 130)
        )
    finally:
        if options.timings:
            write_times(phases, options.timings, outcome)
    line("\nTarn is up. On this machine only:")
    for row in lifecycle.addresses(lifecycle.of_profile(config, here.profile)):
        line(row)
    if here.profile == "small":
        line("  (the small profile: no Spark, Trino or notebooks; scripts/up --full brings them)")
    else:
        line("  (JupyterLab opens with the token in TARN_JUPYTER_URL: scripts/tarn env prints it)")
    if open_edge:
        line("")
        problem(open_edge)
    line("\nTime:")
    for row in phases.table():
        line(row)
    line("\nscripts/tarn --help shows what to do with it; scripts/down stops it and keeps the data.")
    return 0


def write_times(phases: Phases, file: Path, outcome: str) -> None:
    """Write the times of the phases; a file that cannot be written is reported, and changes no outcome."""
    try:
        phases.write(file, command="scripts/up", outcome=outcome, ended_unix=int(time.time()))
    except OSError as error:
        problem(
            Problem(
                f"the times could not be written to {file}: {error.strerror or error}",
                "name a file that you may write: scripts/up --timings FILE",
            )
        )


def choices(profile: str | None, ports: str | None) -> dict[str, str]:
    """Settings from the command line to store in .env; an empty value removes one.

    Raises:
        StopError: `--ports` names an invalid first port.
    """
    chosen: dict[str, str] = {}
    if profile is not None:
        chosen["TARN_PROFILE"] = "" if profile == "full" else profile
    if ports is not None:
        names = project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8"))
        if ports == "default":
            chosen.update(dict.fromkeys(names, ""))
        elif ports.isdecimal() and 1024 <= int(ports) <= 65535 - 2 * len(names):
            chosen.update(project.port_block(int(ports), names))
        else:
            fix = f"give a number from 1024 to {65535 - 2 * len(names)}, such as 20000, or `default`"
            raise StopError(f"--ports {ports}: that is no first port", fix, 2)
    return chosen


def require_profile(here: Project, profile: str | None) -> None:
    """Require that no setting of the user's hides the profile of the command line.

    Raises:
        StopError: TARN_PROFILE is set, to another one.
    """
    name = "TARN_PROFILE"
    if profile is None or name not in here.fixed or here.profile == profile:
        return
    if name in os.environ:
        where, fix = "in the environment", f"unset {name}"
    else:
        where, fix = "by a line of your own in .env", "take that line out"
    what = f"--{profile} has no effect: {name}={here.profile} is set {where}"
    raise StopError(what, f"{fix}, then run this again", 2)


def prepare(
    phases: Phases,
    *,
    assume_yes: bool,
    offline: bool,
    ports: bool,
    chosen: Mapping[str, str] | None = None,
    refresh: bool = False,
) -> Project:
    """Prepare everything before the services start: checks, engine, base image, .env, Tarn's images.

    Args:
        phases: the phases of this run.
        assume_yes: do not ask before installing or starting an engine.
        offline: do not use the network.
        ports: also check the published ports.
        chosen: settings from the command line.
        refresh: rebuild the base image, and with it every image.

    Raises:
        StopError: a requirement is missing or a step failed.
    """
    project.LOG_DIR.mkdir(parents=True, exist_ok=True)
    here = project.load(choices=chosen)
    with phases.phase("checks") as notes:
        wanted, machine, moved = check(here, offline=offline, ports=ports, refresh=refresh)
        if moved:
            here = project.load(choices={**(chosen or {}), **moved})
        notes.append("all well")
    with phases.phase("engine") as notes:
        if wanted == engine.Plan():
            found = engine.look()
        else:
            line(f"    this will {wanted.words()}")
            if not agree("    Go on?", assume_yes):
                raise StopError(
                    "no engine, and not asked to get one", "install and start Docker yourself, or answer y"
                )
            found = engine.carry_out(wanted, machine)
        notes.append(
            ", ".join(
                filter(None, [f"engine {found.server}", found.kind.words(), f"Compose {found.compose}"])
            )
        )
        for text in engine_kind.warnings(found.kind):
            line(f"    note: {text}")
    with phases.phase("base") as notes:
        notes.append(base.ensure(here, offline, refresh))
        former = project.former_name()
        if former and lifecycle.has_data(former):
            line(
                f"    note: this folder was the project {former} before it was moved, renamed or copied, and"
            )
            line(f"    {former} keeps its tables; this is {here.name}. To go on with the former one instead:")
            line(f"    scripts/down, then write COMPOSE_PROJECT_NAME={former} into .env, then scripts/up")
        if project.write_env(here):
            notes.append("wrote .env")
    with phases.phase("build") as notes:
        config = images.compose_config(here)
        notes.append(images.build(here, config, offline, lifecycle.of_profile(config, here.profile)))
    return here


def check(
    here: Project, *, offline: bool, ports: bool, refresh: bool = False
) -> tuple[engine.Plan, engine.Machine, dict[str, str]]:
    """Check all requirements and list everything missing at once.

    Args:
        here: the project.
        offline: do not use the network.
        ports: also check the published ports.
        refresh: whether the base image, and with it every image, is about to be rebuilt.

    Returns:
        The plan for the engine, this machine, and the ports to use instead of those that another copy holds.

    Raises:
        StopError: a requirement is missing; each problem was printed with its fix.
    """
    found, machine = engine.look(), engine.machine()
    wanted, problems = engine.plan(found, machine, offline, overlay=here.overlay)
    running = False
    images_there = False
    published = checks.Published()
    moved: dict[str, str] = {}
    small = here.profile == "small"
    if found.server:
        running = bool(shell.capture(_project_containers(here), timeout_s=20).out.strip())
        largest = ("minio", "kafka") if small else ("minio", "trino", "spark")
        # The images' fingerprint has the id of the base: on another one all are built.
        another_base = refresh or (here.own_base and not base.is_there(here.base))
        images_there = not another_base and images.built_somewhere(largest)
        published = checks.published(here.name)
    problems += checks.disk(found.data_root, images_there, checks.free_mib(found.data_root))
    problems += checks.memory(checks.available_mib(found.memory_bytes), running, small=small)
    if ports:
        text = project.COMPOSE_FILE.read_text(encoding="utf-8")
        chosen = project.ports(here.settings, text)
        moved = _make_way(here, chosen, published)
        problems += checks.ports({**chosen, **moved}, published.own, published.holders)
    if problems:
        _refuse(problems)
    return wanted, machine, moved


def _make_way(here: Project, wanted: Mapping[str, str], published: checks.Published) -> dict[str, str]:
    """Free ports for this copy if another copy of Tarn holds the defaults and the user set none."""
    free = {name: text for name, text in wanted.items() if name not in here.fixed}
    hit = sorted(int(text) for text in free.values() if text.isdecimal() and int(text) in published.tarns)
    if not hit:
        return {}
    moved = checks.free_block(free)
    if moved:
        first, last = min(moved.values(), key=int), max(moved.values(), key=int)
        numbers = ", ".join(str(port) for port in hit)
        line(f"    taken by the copy of Tarn in {published.tarns[hit[0]]}: {numbers}")
        line(f"    this copy takes ports {first} to {last}, remembered in .env (--ports chooses others)")
    return moved


def _project_containers(here: Project) -> list[str]:
    return ["docker", "ps", "--quiet", "--filter", f"label=com.docker.compose.project={here.name}"]


def _refuse(problems: list[Problem]) -> None:
    for item in problems:
        problem(item)
    count = "one thing stands" if len(problems) == 1 else f"{len(problems)} things stand"
    raise StopError(
        f"{count} in the way; nothing was changed", "do what stands behind each `->`, then run this again"
    )


def is_demo_on(settings: Mapping[str, str]) -> bool:
    """Whether TARN_DEMO is `on` or `off`; unset means on. Pure.

    Raises:
        StopError: it has another value.
    """
    word = settings.get("TARN_DEMO", "").lower() or "on"
    if word not in ("on", "off"):
        raise StopError(f"TARN_DEMO is {word}", "set it to on or off, in .env or the environment", 2)
    return word == "on"


def demo(here: Project) -> None:
    """Wait for the first results of the flights demo and show them.

    Raises:
        StopError: no results in time, or the command failed; the exit code is the command's own.
    """
    words = ["demo", "show", "--wait", str(DEMO_WAIT_S)]
    fix = "Tarn itself is up, and the lines above say what is missing; `scripts/up --no-demo` goes without"
    in_cli(here, words, what="the demo", timeout_s=DEMO_TIMEOUT_S, fix=fix)


def in_cli(here: Project, words: Sequence[str], *, what: str, timeout_s: float, fix: str) -> None:
    """Run a command in the cli container; its output is shown as it arrives.

    Args:
        here: the project.
        words: the command and its arguments.
        what: name of the step, for the error message.
        timeout_s: the timeout, in seconds.
        fix: what to do if it fails.

    Raises:
        StopError: it failed, with its own exit code, or timed out.
    """
    command = ["docker", "compose", "run", "--rm", "--no-deps", "-T", "cli", *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            env=shell.environment(here.env()),
            cwd=ROOT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StopError(f"{what} was not done within {timeout_s:g} s", fix, shell.TIMED_OUT) from None
    if done.returncode != 0:
        raise StopError(f"{what} failed with exit code {done.returncode}", fix, done.returncode)


if __name__ == "__main__":
    raise SystemExit(main())
