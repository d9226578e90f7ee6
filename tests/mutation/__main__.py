"""python -m tests.mutation: random mutants of the code that commits, each against the tests of its line.

First `--map` runs the unit and contract tests once and records which of them run which line; with paths, it
adds those tests to the record. Then each call runs mutants until all are done or `--for-s` is over. Results
are kept in artifacts/mutation/, so that a run can be cut into slices. Do not edit code or tests meanwhile.
Exit code: 0 all done, 1 tests fail without a mutant, 3 mutants are left: call it again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import hashlib
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutation.code import Mutant, lines, mutant
from tests.mutation.coverage import ROOT, Coverage, Recorder
from tests.mutation.run import NOT_COVERED, OPTIONS, TIMED_OUT, Result, tried

FILES = (
    "catalog/tarn_catalog/state/*.py",
    "catalog/tarn_catalog/operations/*.py",
    "services/tarn/core/offsets.py",
    "services/tarn/core/decode.py",
    "services/tarn/core/json_parser.py",
    "services/tarn/core/completion.py",
    "services/tarn/core/retired.py",
    "services/tarn/ingest/announcer.py",
    "services/tarn/ingest/batch_commit.py",
    "services/tarn/ingest/bookkeeper.py",
    "services/tarn/ingest/committer.py",
    "services/tarn/ingest/group.py",
    "services/tarn/ingest/mark_commit.py",
    "services/tarn/ingest/pace.py",
    "services/tarn/ingest/retire_commit.py",
    "services/tarn/ingest/retirement.py",
    "services/demo/tarn_demo/driver.py",
    "spark/tarn_jobs/position.py",
)
"""What is mutated. The steps of the pipeline that need Spark are tested in the tier `spark`, not here."""

TESTS = (
    *("tests/unit/catalog", "tests/unit/ingest", "tests/unit/demo", "tests/unit/cli/test_position.py"),
    *("tests/unit/keeper", "tests/unit/history", "tests/contract"),
)
FOLDER = ROOT / "artifacts" / "mutation"
MAP = FOLDER / "map.json"
SEEDS = "20"
"""Random plays of the transactions per mutant (TARN_TEST_SEEDS), instead of the usual 300."""

LIBRARIES = (
    *(
        "pyarrow",
        "pyarrow.parquet",
        "pyarrow.compute",
        "pyarrow.json",
        "pyiceberg.table",
        "pyiceberg.manifest",
    ),
    *("pyiceberg.catalog.rest", "obstore", "hypothesis.strategies", "structlog", "starlette.applications"),
    *("uvicorn", "httpx", "orjson", "pydantic_settings", "typer", "rich.table", "kafka", "pyspark.sql"),
    *("pyspark.sql.connect.session", "testcontainers.core.container", "yaml"),
)
"""Imported once, before the processes of the mutants are forked: nothing of the product."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    found = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    found.add_argument(
        "--map", nargs="*", metavar="TESTS", help="record which tests run which line, then end"
    )
    found.add_argument("--seed", type=int, default=10, help="chooses the mutants (default 10)")
    found.add_argument("--mutants", type=int, default=100, help="how many (default 100)")
    found.add_argument("--for-s", type=float, default=3_600.0, help="start no mutant after so many seconds")
    found.add_argument(
        "--tests-s",
        type=float,
        default=60.0,
        help="of a mutant's tests, the quickest up to so many seconds; 0: all",
    )
    found.add_argument("--again", action="store_true", help="run the survivors again (after new tests)")
    options = found.parse_args(arguments)
    os.environ["TARN_TEST_SEEDS"] = SEEDS
    FOLDER.mkdir(parents=True, exist_ok=True)
    os.environ["TARN_ARTIFACTS"] = str(FOLDER)
    if options.map is not None:
        return record(options.map)
    if not MAP.is_file():
        found.error(f"{MAP} is missing: run it with --map first")
    wanted = chosen(options.seed, options.mutants)
    return run(wanted, options.seed, options.for_s, tests_s=options.tests_s, again=options.again)


def files() -> list[str]:
    """The mutated files, relative to the repository."""
    names = [str(path.relative_to(ROOT)) for pattern in FILES for path in sorted(ROOT.glob(pattern))]
    return [name for name in names if not name.endswith("__init__.py")]


def record(paths: list[str]) -> int:
    """Run the tests without a mutant and write the map, or add the tests of these paths to it."""
    recorder = Recorder(files())
    code = int(pytest.main([*OPTIONS, *(paths or TESTS)], plugins=[recorder]))
    if code == 0:
        if paths:
            recorder.found.add(Coverage.read(MAP))
        recorder.found.save(MAP)
    return min(code, 1)


def chosen(seed: int, count: int) -> list[Mutant]:
    """So many mutants of all files, at random and at most one of a line, in the order of files and lines."""
    modules = {file: ast.parse((ROOT / file).read_text(encoding="utf-8"), file) for file in files()}
    everything = [
        (file, number, line) for file in modules for number, line in enumerate(lines(modules[file]))
    ]
    random.Random(seed).shuffle(everything)
    by_line: dict[tuple[str, int], int] = {}
    for file, number, line in everything:
        by_line.setdefault((file, line), number)
    picked = [(file, number) for (file, _), number in by_line.items()][:count]
    print(f"seed {seed}: {len(picked)} of {len(everything)} mutants in {len(modules)} files")
    return [mutant(modules[file], file, number) for file, number in sorted(picked)]


def run(wanted: list[Mutant], seed: int, for_s: float, *, tests_s: float, again: bool) -> int:
    """Run what has no result yet; print each result and, once all are there, the figures."""
    kept = FOLDER / f"seed-{seed}.json"
    results = _kept(kept, wanted)
    if again:
        results = {name: result for name, result in results.items() if result.is_killed}
    coverage = Coverage.read(MAP)
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    loaded = [name for name in sys.modules if name.partition(".")[0] in ("tarn", "tarn_catalog", "tarn_demo")]
    assert not loaded, f"imported before the mutants: {loaded}"
    end = time.monotonic() + for_s
    for one in wanted:
        if one.id in results:
            continue
        if time.monotonic() > end:
            break
        tests = coverage.covering(one, total_s=tests_s)
        result = tried(one, tests, coverage.seconds)
        results[one.id] = result
        _keep(kept, wanted, results)
        print(f"{result.outcome:<11} {result.seconds:>6.1f} s {one.file}:{one.line} {result.by}", flush=True)
    left = [one for one in wanted if one.id not in results]
    if left:
        print(f"{len(left)} mutants left: call it again")
        return 3
    _say(wanted, results)
    return 0


def _say(wanted: list[Mutant], results: dict[str, Result]) -> None:
    survivors = [m for m in wanted if not results[m.id].is_killed]
    late = [m for m in wanted if results[m.id].outcome == TIMED_OUT]
    for title, listed in (("timed out (counted as killed)", late), ("survived", survivors)):
        if listed:
            print(f"\n{title}:")
        for one in listed:
            note = " (no test runs this line)" if results[one.id].outcome == NOT_COVERED else ""
            print(f"{one.file}:{one.line}{note}\n    - {one.before}\n    + {one.after}")
    seconds = sum(result.seconds for result in results.values())
    print(
        f"\n{len(wanted)} mutants: {len(wanted) - len(survivors)} killed ({len(late)} by the time limit), "
        f"{len(survivors)} survived, {seconds / 60:.0f} min"
    )


def _digest(wanted: list[Mutant]) -> str:
    names = sorted({one.file for one in wanted})
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in names)).hexdigest()


def _kept(path: Path, wanted: list[Mutant]) -> dict[str, Result]:
    """Results of earlier calls, if the mutated code is the same."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["code"] != _digest(wanted):
        print("the code has changed: all mutants are run again")
        return {}
    ids = {one.id for one in wanted}
    return {name: Result(**result) for name, result in found["results"].items() if name in ids}


def _keep(path: Path, wanted: list[Mutant], results: dict[str, Result]) -> None:
    found = {name: dataclasses.asdict(result) for name, result in results.items()}
    path.write_text(json.dumps({"code": _digest(wanted), "results": found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
