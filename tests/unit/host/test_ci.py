"""The time limit of .ci/run ends the tests and everything that they started."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tarn_host import shell
from tarn_host.stack import engine, images, lifecycle, lock, project
from tarn_host.stack.project import Project
from tarn_host.testing import ci, tiers

from tests.support.stack import eventually


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


@pytest.mark.long
def test_a_late_run_ends_with_its_children(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    note = tmp_path / "pid"
    limit_s = 1
    while True:
        begin = time.monotonic()
        code = ci._bounded(["bash", "-c", f"sleep 600 & echo $! > {note}; wait"], timeout_s=limit_s)
        assert code == shell.TIMED_OUT
        assert time.monotonic() - begin < limit_s + 30
        if note.exists() and note.read_text():
            break
        limit_s *= 4  # a busy machine had not started it
    child = int(note.read_text())
    eventually(lambda: not is_alive(child), timeout_s=20, what="the child has ended")
    assert f"not done within {limit_s} s" in capfd.readouterr().out


def test_a_run_in_time_gives_its_own_exit_code() -> None:
    assert ci._bounded(["bash", "-c", "exit 7"], timeout_s=30) == 7


def test_the_limit_is_well_under_ninety_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARN_CI_LIMIT_S", raising=False)
    assert ci.limit_s() + 2 * ci.GRACE_S < 88 * 60
    monkeypatch.setenv("TARN_CI_LIMIT_S", "5")
    assert ci.limit_s() == 5


def test_the_project_of_the_tests_is_never_that_of_the_clone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever names the user's own lake in this clone: its path, .env or the environment."""
    purged: list[str] = []
    # The clone's own lock may be held by the very run of .ci/run that this test is part of.
    monkeypatch.setattr(lock, "path_of", lambda here: tmp_path / "lock")
    monkeypatch.setenv("COMPOSE_PROJECT_NAME", "my-lake")
    monkeypatch.setattr(ci, "_bounded", lambda command, timeout_s: 0)
    monkeypatch.setattr(engine, "look", lambda: engine.Engine("27.0", "", "2.30", "/", None))
    monkeypatch.setattr(lifecycle, "stop", lambda here, purge: purged.append(here.name))
    monkeypatch.setattr(tiers, "by_label", lambda condition: purged.append(condition.rpartition("=")[2]))
    monkeypatch.setattr(images, "compose_config", lambda here: {"services": {}})
    monkeypatch.setattr(images, "image_ids", lambda names: {})
    monkeypatch.setattr(shell, "capture", lambda *_, **__: shell.Result(0, "", ""))
    monkeypatch.setattr(tiers, "ARTIFACTS", Path("/nowhere"))
    assert ci.main() == 0
    own = f"{project.default_name(project.ROOT)}-ci"
    assert set(purged) == {own, f"{own}-test"}
    assert "my-lake" not in purged


def test_nothing_but_that_project_can_be_cleaned() -> None:
    lake = Project(name=project.default_name(project.ROOT), base="b", own_base=True, settings={})
    with pytest.raises(AssertionError, match="is not the project of these tests"):
        ci.clean_up(lake, stop_engine=False)
