"""scripts/doctor: report what is wrong with this copy of Tarn and how to fix it; changes nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from tarn_host.arguments import Parser
from tarn_host.console import StopError, line, stopped
from tarn_host.doctor import bundle
from tarn_host.doctor.facts import Facts, Finding
from tarn_host.doctor.judge import exit_code, judge
from tarn_host.doctor.look import look
from tarn_host.stack import pins, project

HELP = """Look at the machine, the engine, the containers, their logs, volumes and secrets, and say what is
wrong and what to do. Nothing is changed. Exit code 0: nothing found, 1: something found."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts/doctor and return its exit code."""
    found = Parser(prog="scripts/doctor", description=HELP)
    found.add_argument("--json", action="store_true", help="print JSON on stdout, nothing else")
    found.add_argument(
        "--bundle",
        metavar="FILE.tar.gz",
        type=Path,
        help="also pack versions, settings, states and logs for a helper, every secret taken out",
    )
    found.add_argument(
        "--versions",
        action="store_true",
        help="only list what is pinned and name what is old; asks no network",
    )
    options = found.parse_args(arguments)
    begin = time.monotonic()
    try:
        here = project.load()
        if options.versions:
            return _versions(here, as_json=options.json)
        facts = look(here)
        findings, notes = judge(facts)
        result = as_json(facts, findings, notes, time.monotonic() - begin)
        if options.json:
            line(result)
        else:
            for row in as_text(facts, findings, notes):
                line(row)
        if options.bundle:
            cleaned = bundle.write(here, facts, result, options.bundle)
            said = sys.stderr if options.json else sys.stdout
            print(f"\n{options.bundle}: {_words(cleaned)}", file=said, flush=True)
    except StopError as error:
        return stopped(error)
    except OSError as error:
        return stopped(project.hindered(error))
    except KeyboardInterrupt:
        return stopped(StopError("stopped by the keyboard", "run scripts/doctor again", 130))
    return exit_code(findings)


def _versions(here: project.Project, *, as_json: bool) -> int:
    """Print the pinned versions with their ages; the exit code is 1 if one is old."""
    today = datetime.now(timezone.utc).date()
    listed = pins.look(here, today)
    if as_json:
        line(
            json.dumps([{**asdict(pin), "day": pin.day and pin.day.isoformat()} for pin in listed], indent=2)
        )
    else:
        for row in pins.table(listed, today):
            line(row)
    return 1 if any(pin.old for pin in listed) else 0


def as_json(facts: Facts, findings: Sequence[Finding], notes: Sequence[str], took_s: float) -> str:
    """The result as JSON. Pure.

    Args:
        facts: what the doctor collected.
        findings: the faults.
        notes: remarks that are not faults.
        took_s: duration of the run, in seconds.
    """
    whole = {
        "ok": not findings,
        "project": facts.project,
        "root": facts.root,
        "profile": facts.profile,
        "engine": facts.engine.server,
        "compose": facts.engine.compose,
        "services": {c.service: c.health or c.state for c in facts.containers},
        "findings": [asdict(finding) for finding in findings],
        "notes": list(notes),
        "seconds": round(took_s, 1),
    }
    return json.dumps(whole, indent=2)


def as_text(facts: Facts, findings: Sequence[Finding], notes: Sequence[str]) -> list[str]:
    """The result as lines of text. Pure."""
    count = {0: "nothing is wrong", 1: "one thing is wrong"}.get(
        len(findings), f"{len(findings)} things are wrong"
    )
    rows = [f"{facts.project} in {facts.root}: {count}"]
    for finding in findings:
        rows += ["", f"  x {finding.what}"]
        if finding.follows:
            rows.append(f"    because of that: {', '.join(finding.follows)}")
        rows.append(f"    -> {finding.fix}")
    return rows + [f"  . {note}" for note in notes]


def _words(cleaned: bundle.Cleaned) -> str:
    said = f"{len(cleaned.texts)} texts, {cleaned.replaced} secrets or likely secrets taken out"
    if cleaned.left_out:
        said += f"; {len(cleaned.left_out)} left out ({cleaned.why})"
    return f"{said}. Look through it before you send it"


if __name__ == "__main__":
    raise SystemExit(main())
