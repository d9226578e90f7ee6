"""Ingest in one process by this tree and an earlier commit, in turn.

`python -m tests.support.compare_with REV`. Everything but the measured code is in memory, so the figures are
processor time of Tarn's own code: per commit of ten rows (median of 100), and per row of 120,000 rows. The
earlier commit is checked out into a temporary folder and runs with the packages of this tree's environment.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMMITS, UNCOUNTED, ROWS_PER_COMMIT = 120, 20, 10
ROWS, TURNS_MAX = 120_000, 1_000
ROUNDS = 7
RUN_TIMEOUT_S = 300


def one_tree() -> dict[str, float]:
    """Figures of the tree that this process imports from."""
    logging.disable(logging.CRITICAL)
    module, topic = _lake_module()
    return {"commit_ms": _commit_ms(module, topic), "rows_per_cpu_s": _rows_per_cpu_s(module, topic)}


def _lake_module() -> tuple[Any, Callable[..., Any]]:
    """The module with the lake in memory, and its class of topics, by their names now or before."""
    try:
        from tarn.testing.memory_topic import Topic
        from tests.support import lake
    except ImportError:
        import importlib

        world = importlib.import_module("tests.contract.ingest.world")
        return world, world.Topic
    return lake, Topic


def _commit_ms(module: Any, topic_class: Callable[..., Any]) -> float:
    topic = topic_class("orders", 1)
    lake = module.Lake(topic)
    ingestor, took, sent = lake.ingestor(), [], 0
    for _ in range(COMMITS):
        topic.send(0, *(module.order(sent + n) for n in range(ROWS_PER_COMMIT)))
        sent += ROWS_PER_COMMIT
        begin = time.process_time()
        lake.work(ingestor, turns=12)
        took.append(time.process_time() - begin)
    assert len(lake.rows()) == sent
    return statistics.median(took[UNCOUNTED:]) * 1e3


def _rows_per_cpu_s(module: Any, topic_class: Callable[..., Any]) -> float:
    small, module.SPEC = module.SPEC, module.SPEC.replace("maxRecords: 10,", "maxRecords: 20000,")
    topic = topic_class("orders", 2)
    lake = module.Lake(topic)
    ingestor = lake.ingestor()
    module.SPEC = small
    for partition in range(2):
        topic.send(partition, *(module.order(n) for n in range(ROWS // 2)))
    begin = time.process_time()
    for _ in range(TURNS_MAX):
        lake.work(ingestor, turns=4)
        head = lake.table().head
        if head is not None and int(head["summary"]["total-records"]) == ROWS:
            break
    else:
        raise AssertionError(f"not all of {ROWS} rows after {TURNS_MAX} turns")
    return ROWS / (time.process_time() - begin)


def _run(tree: Path) -> dict[str, float]:
    folders = (tree, tree / "catalog", tree / "services", tree / "scripts" / "lib")
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).resolve()), "--one"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
        cwd=tree,
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"{tree} did not run:\n{done.stderr[-2_000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print the figures of both trees, round by round, and the ratios of this tree to the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.compare_with", description=__doc__)
    parser.add_argument("revision", nargs="?", help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"pairs of runs (default {ROUNDS})")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sys.stdout.write(json.dumps(one_tree()) + "\n")
        return 0
    if not options.revision or options.rounds < 1:
        parser.error("name a commit, and at least one round")
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other"
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(other), options.revision], cwd=ROOT, check=True
        )
        try:
            for number in range(options.rounds):
                # In turn, so that a machine that gets slower meets both.
                pair = [_run(tree) for tree in ((ROOT, other), (other, ROOT))[number % 2]]
                mine, theirs = pair if number % 2 == 0 else pair[::-1]
                for name in mine:
                    ratios.setdefault(name, []).append(mine[name] / theirs[name])
                    figures = f"{name} {mine[name]:,.2f} here, {theirs[name]:,.2f} there"
                    sys.stdout.write(f"round {number + 1}: {figures}\n")
                    sys.stdout.flush()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
    for name, found in ratios.items():
        spread = f"{min(found):.2f} to {max(found):.2f}"
        median = statistics.median(found)
        sys.stdout.write(f"{name}: {median:.2f} times that of {options.revision} ({spread})\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
