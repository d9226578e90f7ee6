"""I/O of the health check: time budgets, files, probes, and the process itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import tarn.probe.runner
from tarn.probe.look import end, http, one_line, secret
from tarn.probe.runner import (
    DEEP,
    SHALLOW,
    Looker,
    State,
    budgets_of,
    container_age_s,
    container_start,
    load_state,
    main_process,
    save_state,
)

RUNNER = Path(tarn.probe.runner.__file__)
BUDGETS = {SHALLOW: 0.3, DEEP: 40.0}


@pytest.fixture
def looker() -> Iterator[Looker]:
    """A child process whose behaviour each order selects."""

    def work(order: str) -> str | None:
        if order == SHALLOW:
            time.sleep(50)
        elif order == "die":
            os._exit(1)
        return None if order == DEEP else f"{os.getpid()}"

    made = Looker(work, BUDGETS)
    yield made
    made.rest()


def test_a_look_that_passes_and_one_that_does_not(looker: Looker) -> None:
    assert looker.look(DEEP) is None
    assert looker.ask("who", 40.0) not in (None, str(os.getpid())), "looks are made in another process"


@pytest.mark.long
def test_a_look_over_its_budget_is_killed_and_the_next_one_is_made(looker: Looker) -> None:
    begin_s = time.monotonic()
    assert looker.look(SHALLOW) == "shallow: no answer within 0.3 s"
    assert time.monotonic() - begin_s < 40.0
    assert looker.look(DEEP) is None


def test_a_look_that_dies_is_a_fault(looker: Looker) -> None:
    assert looker.ask("die", 40.0) == "the look ended without a result"
    assert looker.look(DEEP) is None


def test_a_child_serves_until_the_rest_and_leaves_nothing_behind(looker: Looker) -> None:
    first = looker.ask("who", 40.0)
    assert looker.ask("who", 40.0) == first
    looker.rest()
    assert first is not None
    assert not Path("/proc", first).exists()
    assert looker.ask("who", 40.0) != first


def test_a_container_without_room_for_a_process_is_a_fault(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    open_before = set(os.listdir("/proc/self/fd"))
    assert looker.look(DEEP) == "deep: no look can be made: Resource temporarily unavailable"
    # What other tests left open may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) <= open_before


def test_what_a_probe_raises_is_one_line() -> None:
    error = RuntimeError("GET /x answered 403\n  (AccessDenied)")
    assert one_line(error) == "GET /x answered 403 (AccessDenied)"
    assert one_line(ValueError("size -1")) == "ValueError: size -1"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(RuntimeError("x" * 5000))) == 400


def test_the_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    state = State("boot/1", healthy=True, deep_passed_s=12.5, silent_from_s=13.0, silent_looks=3)
    save_state(f"{tmp_path}/state", state)
    assert load_state(f"{tmp_path}/state") == state
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("content", ["", "{", "start=a\n", "start=a\nsilent_looks=x\n", "\0"])
def test_a_state_that_cannot_be_understood_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "state").write_text(content)
    assert load_state(f"{tmp_path}/state") is None


def test_a_state_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot be written: .*; mount a tmpfs at "):
        save_state(f"{tmp_path}/absent/state", State("boot/1"))


def test_a_start_has_the_same_name_as_long_as_it_lasts() -> None:
    assert container_start() == container_start()
    boot, _, ticks = container_start().partition("/")
    assert len(boot) == 36
    assert int(ticks) >= 0
    assert container_age_s() > 0


def test_only_the_child_of_an_engines_init_is_ever_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"1": "1 (tini) S 0", "7": "7 (java (x) y) T 1", "9": "9 (users.py) S 1", "12": "12 (sh) Z 1"}
    starts = {"1": 10, "7": 12, "9": 15, "12": 11}
    comm = {"now": "docker-init"}

    def read(path: str) -> str:
        if path == "/proc/1/comm":
            return comm["now"] + "\n"
        name = path.split("/")[2]
        if name == "13":
            raise FileNotFoundError(path)
        return f"{stats[name]} {'0 ' * 17}{starts[name]} 0"

    monkeypatch.setattr(tarn.probe.runner, "read", read)
    monkeypatch.setattr(os, "listdir", lambda path: [*stats, "13", "uptime"])
    assert main_process() == 7, "the first one that was started, and no zombie"
    comm["now"] = "java"
    assert main_process() is None


def test_a_secret_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    (tmp_path / "root_user").write_text("someone\n")
    assert secret("root_user") == "someone"
    with pytest.raises(RuntimeError, match=r"root_password cannot be read: No such file"):
        secret("root_password")


def test_http_gives_status_headers_and_body() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(412)
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(body[::-1])

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    status, headers, body = http("PUT", f"127.0.0.1:{server.server_port}", "/k?secret=1", body=b"abc")
    thread.join()
    server.server_close()
    assert (status, headers["etag"], body) == (412, '"1"', b"cba")
    with pytest.raises(
        RuntimeError, match=rf"PUT http://127.0.0.1:{server.server_port}/k: .*refused"
    ) as caught:
        http("PUT", f"127.0.0.1:{server.server_port}", "/k?secret=1", body=b"abc")
    assert "secret" not in str(caught.value)


# -- the process: the same file as in the images -------------------------------------------------------------


def run(tmp_path: Path, probe: str, *arguments: str, hold_s: float = 0.6) -> subprocess.CompletedProcess[str]:
    """Run the runner with a probe beside it, with its state and limits adapted to the test."""
    folder = tmp_path / "probe"
    shutil.copytree(RUNNER.parent, folder, dirs_exist_ok=True)
    (folder / "service.py").write_text(probe)
    text = RUNNER.read_text()
    for old, new in (
        ('"/tmp/tarn-health"', repr(f"{tmp_path}/state")),
        ("hold_s = 120.0", f"hold_s = {hold_s}"),
        ("watch_s = 15.0", "watch_s = 0.2"),
        ("retry_s = 2.0", "retry_s = 0.1"),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "runner.py").write_text(text)
    command = [sys.executable, "-I", "-S", str(folder / "runner.py"), *arguments]
    environment = {"PATH": os.environ["PATH"], "TARN_SECRETS_DIR": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, env=environment)


def probe_of(*, alive: str = "pass", shallow: str = "pass", deep: str = "pass", top: str = "") -> str:
    return f"{top}\nSERVICE = 'x'\ndef alive(): {alive}\ndef shallow(): {shallow}\ndef deep(): {deep}\n"


@pytest.mark.long
def test_the_runner_is_alone_and_stdlib_only(tmp_path: Path) -> None:
    done = run(tmp_path, probe_of())
    assert (done.returncode, done.stdout, done.stderr) == (0, "usable (deep)\n", "")
    state = load_state(f"{tmp_path}/state")
    assert state is not None
    assert (state.healthy, state.answered, state.start) == (True, True, container_start())
    done = run(tmp_path, probe_of(deep="raise SystemExit('not now')"))
    assert (done.returncode, done.stdout) == (0, "usable (shallow)\n")


def test_the_watch_itself_imports_next_to_nothing() -> None:
    """Every lake runs eight of them: each megabyte counts eight times."""
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(RUNNER), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "select" in found, "the list of imports cannot be understood"
    heavy = {"json", "re", "enum", "socket", "http", "dataclasses", "pathlib", "typing", "site", "signal"}
    assert found & heavy == set()


@pytest.mark.long
def test_a_probe_uses_what_lies_beside_it(tmp_path: Path) -> None:
    probe = probe_of(shallow="secret('key')", top="from tarn.probe.look import secret")
    done = run(tmp_path, probe)
    assert done.returncode == 1
    assert done.stdout == f"shallow: secret {tmp_path}/key cannot be read: No such file or directory\n"
    (tmp_path / "key").write_text("x")
    assert run(tmp_path, probe).returncode == 0


@pytest.mark.long
def test_a_probe_sets_its_own_budgets(tmp_path: Path) -> None:
    probe = probe_of(shallow="time.sleep(5)", top="import time\nSHALLOW_BUDGET_S = 0.3")
    done = run(tmp_path, probe, "--once", "shallow")
    assert (done.returncode, done.stdout) == (1, "shallow: no answer within 0.3 s\n")
    assert budgets_of(str(tmp_path / "probe/service.py")) == {"alive": 5.0, "shallow": 0.3, "deep": 20.0}


@pytest.mark.long
def test_a_probe_that_cannot_be_loaded_is_unhealthy_and_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "import no_such_module\n")
    assert done.returncode == 1
    assert done.stdout == ("shallow: ModuleNotFoundError: No module named 'no_such_module'\n")


@pytest.mark.long
def test_looking_once_leaves_no_state(tmp_path: Path) -> None:
    for level in ("alive", "shallow", "deep"):
        done = run(tmp_path, probe_of(), "--once", level)
        assert (done.returncode, done.stdout) == (0, f"usable ({level})\n")
    assert not (tmp_path / "state").exists()


def test_a_wrong_argument_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "", "--twice")
    assert (done.returncode, done.stderr) == (2, "usage: runner.py [--once alive|shallow|deep] [PROBE]\n")


def test_the_end_of_a_process_is_one_clear_line(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    end(process.pid, service="minio", silent_s=31, fault="no answer", log_path=str(tmp_path / "log"))
    assert process.wait(timeout=40) == -signal.SIGKILL
    (line,) = (tmp_path / "log").read_text().splitlines()
    told = json.loads(line)
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "level": "error",
        "event": "no answer of its own: the process is ended, and the container starts again",
        "service": "minio",
        "logger": "health",
        "silent_s": 31,
        "fault": "no answer",
        "pid": process.pid,
    }


def test_a_log_that_takes_no_line_does_not_keep_a_hanging_process(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    end(process.pid, service="minio", silent_s=31, fault="", log_path=str(tmp_path / "absent" / "log"))
    assert process.wait(timeout=40) == -signal.SIGKILL
