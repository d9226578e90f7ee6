"""The commands of `python -m tests.campaign`: simulate, real, soak, mutants, page; see docs/faults.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.campaign.results import Result
from tests.campaign.through import Through


def numbers(text: str, through: Through = "ingest") -> list[int]:
    """Numbers of faults: `all`, or some of them separated by commas.

    Raises:
        ArgumentTypeError: there is no such fault.
    """
    from tests.campaign.faults import NUMBERS
    from tests.campaign.gateway_log import SCENARIOS

    known = NUMBERS if through == "ingest" else tuple(sorted(SCENARIOS[through]))
    if text == "all":
        return list(known)
    found = [int(part) for part in text.split(",")]
    unknown = sorted(set(found) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(f"no faults {unknown}; there are {', '.join(map(str, known))}")
    return found


def readers(text: str, through: Through = "ingest") -> list[int]:
    """Numbers of readers per engine, 1, 3, or of gateways, 1, 2, or both separated by a comma.

    Raises:
        ArgumentTypeError: there is no such number.
    """
    found = [int(part) for part in text.split(",")]
    if through == "ingest" and (unknown := sorted(set(found) - {1, 3})):
        raise argparse.ArgumentTypeError(f"{unknown}: engines have 1 or 3 readers")
    if through != "ingest" and (unknown := sorted(set(found) - {1, 2})):
        raise argparse.ArgumentTypeError(f"{unknown}: there are 1 or 2 gateways")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 0 if nothing was lost, doubled or broken, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    simulated = commands.add_parser("simulate", help="run seeds of the faults in simulation")
    ways = ("ingest", "gateway", "log")
    simulated.add_argument("--through", choices=ways, default="ingest", help="what writes (ingest)")
    simulated.add_argument("--faults", default="all", help="all, or 1,2,12")
    simulated.add_argument("--seeds", type=int, default=1_000, help="seeds per fault (1000)")
    simulated.add_argument("--from", dest="first", type=int, default=0, help="the first seed (0)")
    simulated.add_argument("--out", type=Path, required=True, help="result file; gone on with if it exists")
    simulated.add_argument("--processes", type=int, default=2, help="processes (2)")
    simulated.add_argument("--minutes", type=float, default=120.0, help="stop after so many minutes (120)")
    simulated.add_argument("--replicas", help="readers per engine (1,3), or gateways (1,2)")
    real = commands.add_parser("real", help="run the faults on a stack of its own")
    real.add_argument("--through", choices=("ingest", "gateway"), default="ingest", help="what writes")
    real.add_argument("--faults", default="all", help="all, or numbers")
    real.add_argument("--seeds", type=int, default=5, help="seeds per fault (5)")
    real.add_argument("--from", dest="first", type=int, default=0, help="the first seed (0)")
    real.add_argument("--minutes", type=float, default=120.0, help="stop after so many minutes (120)")
    real.add_argument("--out", type=Path, required=True, help="result file; gone on with if it exists")
    real.add_argument("--project", default="", help="use this running project; else one is started")
    real.add_argument("--replicas", help="readers per engine (1,3); gateways are always two")
    real.add_argument("--lanes", type=int, default=3, help="rounds at the same time (3)")
    soaked = commands.add_parser("soak", help="a mix of faults for an hour, on a stack of its own")
    soaked.add_argument("--minutes", type=float, default=60.0, help="how long faults are drawn (60)")
    soaked.add_argument("--seed", type=int, default=0, help="what the draws follow (0)")
    soaked.add_argument("--out", type=Path, required=True, help="result file")
    soaked.add_argument("--project", default="", help="use this running project; else one is started")
    mutants = commands.add_parser("mutants", help="take rules out; each must be noticed")
    mutants.add_argument("names", nargs="*", help="some of them; all by default")
    mutants.add_argument("--seeds", type=int, default=40, help="seeds per mutant and fault at most (40)")
    mutants.add_argument("--replicas", type=int, choices=(1, 3), help="readers per engine; each mutant's own")
    page = commands.add_parser("page", help="write docs/faults.md from docs/results/faults-*.json")
    page.add_argument("--check", action="store_true", help="only compare")
    asked = parser.parse_args(arguments)
    try:
        return COMMANDS[asked.command](asked)
    except argparse.ArgumentTypeError as e:
        parser.error(str(e))


def _simulate(asked: argparse.Namespace) -> int:
    from tests.campaign.simulate import simulate

    default = "1,3" if asked.through == "ingest" else "1,2"
    result = simulate(
        numbers(asked.faults, asked.through),
        seeds=asked.seeds,
        first=asked.first,
        file=asked.out,
        processes=asked.processes,
        minutes=asked.minutes,
        replicas=readers(asked.replicas or default, asked.through),
        through=asked.through,
    )
    return _ended(result)


def _ended(result: Result) -> int:
    """Print what failed and what is short; the exit code."""
    failed, short = result.failures(), result.short()
    for text in failed:
        sys.stderr.write(f"{text}\n")
    if short:
        sys.stderr.write(f"fewer seeds than asked for: {', '.join(short)}; run the same command again\n")
    return 1 if failed else 0


def _users_scripts() -> None:
    """Make the users' scripts importable: they are not an installed package."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "lib"))


def _soak(asked: argparse.Namespace) -> int:
    _users_scripts()
    from tests.campaign.real_soak import soak

    return soak(minutes=asked.minutes, seed=asked.seed, file=asked.out, project=asked.project)


def _real(asked: argparse.Namespace) -> int:
    _users_scripts()
    from tests.campaign.real import campaign

    return campaign(
        asked.faults,
        seeds=asked.seeds,
        first=asked.first,
        minutes=asked.minutes,
        file=asked.out,
        project=asked.project,
        replicas=readers(asked.replicas or "1,3") if asked.through == "ingest" else [2],
        lanes=asked.lanes,
        ended=_ended,
        through=asked.through,
    )


def _mutants(asked: argparse.Namespace) -> int:
    from tests.campaign.mutants import run

    return run(asked.names, seeds=asked.seeds, replicas=asked.replicas)


def _page(asked: argparse.Namespace) -> int:
    from tests.campaign.page import FILE, page

    text = page()
    if asked.check:
        return 0 if FILE.read_text() == text else 1
    FILE.write_text(text)
    return 0


COMMANDS = {"simulate": _simulate, "real": _real, "soak": _soak, "mutants": _mutants, "page": _page}


def with_fixed_hashes() -> None:
    """Start this program again if the order of sets would differ from run to run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.campaign", *sys.argv[1:]])
