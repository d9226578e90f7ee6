"""The edge of the health check: budgets, files, probes, and the process itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import tarn.health
from tarn.health import State, bounded, container_start, http, load_state, one_line, save_state, secret

RUNNER = Path(tarn.health.__file__)


def test_work_within_its_budget_passes() -> None:
    assert bounded(lambda: None, 1.0) is None


def test_work_over_its_budget_is_cut_even_where_a_library_swallows_errors() -> None:
    turns = []

    def stubborn() -> None:
        for _ in range(50):
            try:
                time.sleep(0.1)
            except Exception:  # noqa: BLE001 - this is what the budget must get through
                continue
            turns.append(1)

    assert bounded(stubborn, 0.2) == "no answer within 0.2 s"
    assert len(turns) < 40, "it was cut, not waited for; turns say so on a slow machine, too"


def test_what_a_probe_raises_is_one_line() -> None:
    def broken() -> None:
        raise RuntimeError("GET /x answered 403\n  (AccessDenied)")

    assert bounded(broken, 1.0) == "GET /x answered 403 (AccessDenied)"
    assert one_line(ValueError("size -1")) == "ValueError: size -1"
    assert one_line(KeyError()) == "KeyError"
    assert len(one_line(RuntimeError("x" * 5000))) == 400


def test_the_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    state = State(start="boot/1", healthy=True, deep_passed_s=12.5, ended_s=13.0)
    save_state(tmp_path / "state.json", state)
    assert load_state(tmp_path / "state.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"start": "a", "more": 1}', "null"])
def test_a_state_that_cannot_be_understood_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    assert load_state(tmp_path / "state.json") is None


def test_a_state_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cannot be written: .*; mount a tmpfs at "):
        save_state(tmp_path / "absent" / "state.json", State(start="boot/1"))


def test_a_start_has_the_same_name_as_long_as_it_lasts() -> None:
    assert container_start() == container_start()
    boot, _, ticks = container_start().partition("/")
    assert len(boot) == 36
    assert int(ticks) >= 0


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


# -- the process: the very file that images run --------------------------------------------------------------


def run(tmp_path: Path, probe: str, *arguments: str, hold_s: float = 0.6) -> subprocess.CompletedProcess[str]:
    """The runner beside a probe, with its state and its watch moved to fit a test."""
    (tmp_path / "probe.py").write_text(probe)
    text = RUNNER.read_text()
    for old, new in (
        ('Path("/tmp/tarn-health.json")', f"Path({str(tmp_path / 'state.json')!r})"),
        ("hold_s: float = 45.0", f"hold_s: float = {hold_s}"),
        ("watch_s: float = 10.0", "watch_s: float = 0.2"),
        ("retry_s: float = 2.0", "retry_s: float = 0.1"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "health.py").write_text(text)
    command = [sys.executable, "-I", "-S", str(tmp_path / "health.py"), *arguments]
    environment = {"PATH": os.environ["PATH"], "TARN_SECRETS_DIR": str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environment)


def test_the_runner_is_alone_and_stdlib_only(tmp_path: Path) -> None:
    done = run(tmp_path, "def shallow(): pass\ndef deep(): pass\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "usable (deep)\n", "")
    state = json.loads((tmp_path / "state.json").read_text())
    assert state["healthy"] is True
    assert state["start"] == container_start()
    done = run(tmp_path, "def shallow(): pass\ndef deep(): raise SystemExit('not now')\n")
    assert (done.returncode, done.stdout) == (0, "usable (shallow)\n")


def test_a_probe_uses_the_runner_without_the_package(tmp_path: Path) -> None:
    probe = "from tarn.health import secret\ndef shallow(): secret('key')\ndef deep(): pass\n"
    done = run(tmp_path, probe)
    assert done.returncode == 1
    assert done.stdout == f"shallow: secret {tmp_path}/key cannot be read: No such file or directory\n"
    (tmp_path / "key").write_text("x")
    assert run(tmp_path, probe).returncode == 0


def test_a_probe_sets_its_own_budgets(tmp_path: Path) -> None:
    probe = "import time\nSHALLOW_BUDGET_S = 0.3\ndef shallow(): time.sleep(5)\ndef deep(): pass\n"
    done = run(tmp_path, probe, "--once", "shallow")
    assert (done.returncode, done.stdout) == (1, "shallow: no answer within 0.3 s\n")


def test_a_probe_that_cannot_be_loaded_is_unhealthy_and_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "import no_such_module\n")
    assert done.returncode == 1
    assert done.stdout == ("the check itself failed: ModuleNotFoundError: No module named 'no_such_module'\n")


def test_looking_once_leaves_no_state(tmp_path: Path) -> None:
    done = run(tmp_path, "def shallow(): pass\ndef deep(): pass\n", "--once", "deep")
    assert (done.returncode, done.stdout) == (0, "usable (deep)\n")
    assert not (tmp_path / "state.json").exists()


def test_a_wrong_argument_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "", "--twice")
    assert (done.returncode, done.stderr) == (2, "usage: health.py [--once shallow|deep]\n")
