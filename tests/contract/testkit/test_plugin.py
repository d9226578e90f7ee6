"""The pytest plugin, in suites of its own that run as other people's do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import free_ports

pytestmark = pytest.mark.timeout(300)
SUITE_S = 280
"""The machine may be busy: such a suite takes some five seconds of processor time, most for imports."""
ONE = "test_suite.py::test_rows[0]"
SUITE = '''
import pytest

from tarn.controller import declaring

SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: shop.orders}}
  table: {namespace: bronze, name: orders}
  schema: {fields: [{name: id, type: long}]}
  batching: {maxLatencySeconds: 0.05}
"""

@pytest.mark.parametrize("number", range(2))
def test_rows(namespace, number):
    orders = namespace.ingest(SPEC)
    orders.wait_for(orders.produce([{"id": number}]))
    assert [row["id"] for row in orders.rows()] == [number]

def test_the_former_namespace_is_gone(lake):
    assert lake.catalog.list_namespaces() == []
    lake.ingest(SPEC)

def test_the_ingestor_of_the_former_test_is_gone(lake):
    lake.ingest(SPEC.replace("name: orders}\\nspec", "name: other}\\nspec"))

@pytest.fixture
def ended(lake):
    yield
    assert declaring.gone(lake.backend.specs, "orders"), "it would write while a namespace is dropped"

def test_an_ingestor_ends_before_the_fixtures_of_its_test(ended, lake):
    lake.ingest(SPEC)
    assert not declaring.gone(lake.backend.specs, "orders")

@pytest.mark.tarn_stack
def test_with_a_stack(lake):
    lake.trino.query("SELECT 1")

@pytest.mark.tarn_stack(profile="full")
@pytest.mark.tarn_faults
def test_with_faults(lake):
    lake.faults.kill("trino")
'''


def suite(
    folder: Path, *options: str, path: Path | None = None, text: str = SUITE, **env: str
) -> subprocess.Popen[str]:
    """A suite that was started; `path` is all that it has of commands, by default nothing."""
    (folder / "test_suite.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -ra --strict-markers -p no:cacheprovider\n")
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TARN_", "PYTEST_", "AWS_"))
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "tarn_testkit.plugin", *options],
        cwd=folder,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": str(path or folder / "none"), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said, _ = process.communicate(timeout=SUITE_S)
    finally:
        process.kill()
    return process.returncode, said


def test_a_suite_passes_embedded_and_skips_what_needs_a_stack(tmp_path: Path) -> None:
    code, said = outcome(suite(tmp_path, "--tarn-embedded", TMPDIR=str(tmp_path)))
    assert code == 0, said
    assert "tarn: embedded in this process (--tarn-embedded); names of this session begin with kit_" in said
    assert "5 passed, 2 skipped" in said
    assert "needs a running stack, and --tarn-embedded was given" in said
    assert list(tmp_path.glob("tarn-kit-*")) == [], "the lake is removed"


def test_without_an_engine_the_lake_is_embedded_and_what_needs_a_stack_fails(tmp_path: Path) -> None:
    chosen = (ONE, "test_suite.py::test_with_a_stack", "test_suite.py::test_with_faults")
    code, said = outcome(suite(tmp_path, "--tarn-keep", *chosen, TMPDIR=str(tmp_path)))
    assert code == 1, said
    assert "tarn: embedded in this process, because there is no docker command" in said
    assert "1 passed, 2 errors" in said
    assert (
        "this test needs a running stack, and the lake is embedded in this process, because there is no"
        in said
    )
    assert "or have such tests skipped: --tarn-embedded" in said
    (folder,) = tmp_path.glob("tarn-kit-*")
    assert f"tarn: kept in {folder}: the embedded lake" in said
    assert list((folder / "embedded" / "lake").iterdir())


@pytest.mark.parametrize(
    ("options", "env", "says"),
    [
        (
            ["--tarn-profile", "full"],
            {},
            "--tarn-profile full asks for a stack, and it cannot be started: there is",
        ),
        ([], {"TARN_HOME": "none"}, "none (TARN_HOME) is not a clone of Tarn: it has no scripts/up"),
        (["--tarn-env=none.sh"], {}, "none.sh cannot be read as the output of scripts/tarn env"),
        (
            [],
            {"TARN_ENV": "pytest.ini"},
            "pytest.ini has no TARN_CATALOG_URI: it is not the output of scripts/tarn",
        ),
        (
            [],
            {"TARN_CATALOG_URI": "http://127.0.0.1:1"},
            "these variables are missing: TARN_CATALOG_CREDENTIAL, ",
        ),
    ],
)
def test_a_lake_that_cannot_be_had_says_why(
    tmp_path: Path, options: list[str], env: dict[str, str], says: str
) -> None:
    code, said = outcome(suite(tmp_path, *options, ONE, **env))
    assert code == 1, said
    assert "no lake: " in said
    assert says in said
    assert "During handling" not in said


def test_options_that_ask_for_different_lakes_are_refused(tmp_path: Path) -> None:
    code, said = outcome(suite(tmp_path, "--tarn-embedded", "--tarn-profile", "full"))
    assert code == pytest.ExitCode.USAGE_ERROR, said
    assert "--tarn-embedded and --tarn-profile ask for different lakes; give one of them" in said


def test_a_catalog_that_does_not_answer_is_named(tmp_path: Path) -> None:
    from tarn_testkit.environment import NAMES

    (port,) = free_ports(["any"]).values()
    values = dict.fromkeys(NAMES, "x") | {"TARN_CATALOG_URI": f"http://127.0.0.1:{port}"}
    (tmp_path / "env.sh").write_text("".join(f"export {name}={value}\n" for name, value in values.items()))
    code, said = outcome(suite(tmp_path, "--tarn-env=env.sh", ONE, "test_suite.py::test_with_faults"))
    assert code == 1, said
    assert f"tarn: attached to the running stack at http://127.0.0.1:{port}" in said
    assert f"the catalog at http://127.0.0.1:{port} (TARN_CATALOG_URI) does not answer" in said
    assert "scripts/tarn status shows it, scripts/up starts it" in said
    assert "breaks a service, and the stack was running before: allow it with --tarn-faults" in said


@pytest.mark.parametrize("listens", [True, False])
def test_what_needs_trino_is_skipped_where_nothing_listens_as_in_the_small_profile(
    tmp_path: Path, listens: bool
) -> None:
    from tarn_testkit.environment import NAMES

    text = """
import pytest

@pytest.mark.tarn_stack(profile="full")
def test_of_the_full_profile():
    pass
"""
    with socket.socket() as trino:
        trino.bind(("127.0.0.1", 0))
        if listens:
            trino.listen()
        where = {"TARN_TRINO_URI": f"http://127.0.0.1:{trino.getsockname()[1]}"}
        code, said = outcome(suite(tmp_path, text=text, **(dict.fromkeys(NAMES, "x") | where)))
    assert code == 0, said
    assert ("1 passed" in said) is listens
    assert ("needs the full profile: --tarn-profile full, or scripts/up --full" in said) is not listens


def test_a_suite_that_does_not_ask_for_the_lake_has_none(tmp_path: Path) -> None:
    """Neither a stack is started nor the engine imported: the plugin is in every run of a team's pytest."""
    text = """
import sys

def test_nothing_is_loaded():
    assert not [name for name in ("pyiceberg", "pyarrow", "kafka", "tarn_catalog") if name in sys.modules]
"""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "docker").write_text("#!/bin/sh\necho 29.0\n")
    (tools / "docker").chmod(0o755)
    home = tmp_path / "clone"
    (home / "scripts").mkdir(parents=True)
    (home / "scripts" / "up").write_text("#!/bin/sh\ntouch started\n")
    (home / "scripts" / "up").chmod(0o755)
    (home / "docker-compose.yml").touch()
    path = Path(f"{tools}:/usr/bin:/bin")
    code, said = outcome(suite(tmp_path, text=text, path=path, TARN_HOME=str(home)))
    assert code == 0, said
    assert f"the small profile, started when a test first needs it, from {home}" in said
    assert not (home / "started").exists()
    code, said = outcome(suite(tmp_path, path=path, TARN_HOME=str(home)))
    assert (home / "started").exists(), "control: a test that asks for the lake has it started"
    assert code == 1


SIDE_BY_SIDE = (
    SUITE.partition("@pytest.mark")[0]
    + """
import json
from pathlib import Path

@pytest.mark.parametrize("number", range(2))
def test_rows(lake, tarn_session, number):
    with lake.namespace("same") as namespace:
        orders = namespace.ingest(SPEC)
        orders.wait_for(orders.produce([{"id": number}]))
        assert [row["id"] for row in orders.rows()] == [number]
        seen = {
            "session": tarn_session.id,
            "worker": tarn_session.worker,
            "namespace": str(namespace),
            "topic": orders.topic,
            "lake": lake.catalog.load_table(orders.table).location().partition("/lake/")[0],
        }
        Path(f"seen{number}.json").write_text(json.dumps(seen))
"""
)


@pytest.mark.in_turn(3, "two sessions, or two processes of one, have names or a lake in common")
def test_suites_side_by_side_do_not_meet(tmp_path: Path) -> None:
    """Two sessions at once, one of them on two processes of pytest-xdist; they name everything alike."""
    running: dict[str, subprocess.Popen[str]] = {}
    for name, options in (("one", ()), ("two", ("-p", "xdist", "-n", "2"))):
        folder = tmp_path / name
        folder.mkdir()
        running[name] = suite(folder, "--tarn-embedded", *options, text=SIDE_BY_SIDE)
    for code, said in [outcome(process) for process in running.values()]:
        assert code == 0, said
        assert "2 passed" in said
    one, two = (
        [json.loads((tmp_path / name / f"seen{number}.json").read_text()) for number in range(2)]
        for name in running
    )
    assert [seen["worker"] for seen in one] == ["", ""]
    assert sorted(seen["worker"] for seen in two) == ["gw0", "gw1"]
    sessions = [{seen["session"] for seen in each} for each in (one, two)]
    assert [len(each) for each in sessions] == [1, 1]
    assert sessions[0] != sessions[1]
    for what in ("namespace", "topic"):
        assert len({seen[what] for seen in (*one, *two)}) == 4, what
    assert [len({seen["lake"] for seen in each}) for each in (one, two)] == [1, 2]
    assert len({seen["lake"] for seen in (*one, *two)}) == 3
