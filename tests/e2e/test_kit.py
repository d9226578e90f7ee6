"""The test kit on a running stack: the example project's suite, two at a time, and with services killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tarn_host.stack import project

from tarn_testkit.attached import AttachedLake
from tarn_testkit.environment import parse_exports
from tarn_testkit.errors import NotAllowedError, NotInProfileError
from tests.support.documents import to_try
from tests.support.stack import Stack

EXAMPLE = project.ROOT / "docs" / "examples" / "orders-pipeline"
SUITE_S = 700
PROGRAM = f"{sys.executable} -m pytest -p no:cacheprovider"


def environment(stack: Stack) -> dict[str, str]:
    """A shell's environment beside the clone, without what other clients were given."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("TARN_", "PYTEST_", "AWS_"))}
    return {**kept, **stack.env, "PYTHONPATH": str(EXAMPLE)}


def suite(stack: Stack, *options: str) -> subprocess.Popen[str]:
    """The last block of the page, typed in the clone."""
    text = to_try(project.ROOT / "docs" / "test-your-pipeline.md")[-1].text
    assert ".tarn/kit/bin/pytest" in text
    script = text.replace(".tarn/kit/bin/pytest", " ".join((PROGRAM, *options)))
    return subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=project.ROOT,
        env=environment(stack),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> str:
    """What a suite that passes printed."""
    try:
        said, _ = process.communicate(timeout=SUITE_S)
    finally:
        process.kill()
    assert process.returncode == 0, said[-8000:]
    return said


@pytest.fixture(scope="module")
def values(stack: Stack) -> dict[str, str]:
    answer = stack.script("tarn", "env", timeout_s=120)
    assert answer.code == 0, answer.text
    return parse_exports(answer.text)


@contextmanager
def attached(values: dict[str, str], *, faults: bool = False) -> Iterator[AttachedLake]:
    found = AttachedLake(values, faults=faults)
    try:
        yield found
    finally:
        found.close()


def left_behind(values: dict[str, str], session: str) -> list[str]:
    """Namespaces, topics and ingestors of a session that are there now."""
    with attached(values) as lake:
        names = [".".join(one) for one in lake.catalog.list_namespaces()]
        names += [
            one.declared.name for one in lake.specs.list().values() if one.declared and not one.declared.gone
        ]
        names += lake.topics.names()
    return [name for name in names if name.replace("-", "_").startswith(session)]


@pytest.mark.timeout(1_800)
def test_two_suites_side_by_side_pass_and_leave_nothing(stack: Stack, values: dict[str, str]) -> None:
    running = [suite(stack), suite(stack)]
    found = [outcome(process) for process in running]
    sessions = set()
    for said in found:
        assert f"tarn: attached to the running stack at {values['TARN_CATALOG_URI']}" in said
        assert "7 passed, 2 skipped" in said
        assert "breaks a service, and the stack was running before: allow it with --tarn-faults" in said
        sessions |= set(re.findall(r"names of this session begin with (kit_[0-9a-f]{6})", said))
    assert len(sessions) == 2
    assert [left_behind(values, session) for session in sessions] == [[], []]


@pytest.mark.timeout(1_800)
def test_orders_survive_a_killed_writer_and_a_frozen_catalog(stack: Stack) -> None:
    with stack.fault():
        said = outcome(suite(stack, "--tarn-faults", "-m", "tarn_faults"))
        stack.await_healthy()
    assert "2 passed, 7 deselected" in said


def test_faults_say_what_they_need(stack: Stack, values: dict[str, str], tmp_path: Path) -> None:
    with attached(values) as lake, pytest.raises(NotAllowedError, match="which others may be using"):
        lake.kill("ingest", timeout_s=1)
    with attached(values, faults=True) as lake, pytest.raises(NotInProfileError) as found:
        lake.kill("jenkins", timeout_s=1)
    assert f"there is no container of service 'jenkins'; this stack ({stack.name}) has" in str(found.value)
    gone = values | {"TARN_TRINO_URI": "http://127.0.0.1:1", "TARN_SPARK_REMOTE": "sc://localhost:1/;token=x"}
    with attached(gone) as lake:
        for use in (lake.cursor, lake.spark):
            with pytest.raises(NotInProfileError, match="the small profile has none"):
                use()


def test_spark_and_trino_answer(values: dict[str, str]) -> None:
    with attached(values) as lake:
        assert lake.query("SELECT 1") == [[1]]
        assert lake.spark().sql("SELECT 1").collect()[0][0] == 1
        assert lake.spark() is lake.spark()
