"""The server's configuration: the token from its file, and no way around it."""

from __future__ import annotations

import json
import logging
import os
import runpy
from pathlib import Path
from typing import Any

import pytest

CONFIG = Path(__file__).resolve().parents[3] / "notebooks" / "jupyter_server_config.py"
TOKEN = "t" * 43


class Settings:
    """Fake of traitlets' config: `c.Class.name = value`."""

    def __getattr__(self, name: str) -> Settings:
        found = Settings()
        setattr(self, name, found)
        return found


def load(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Settings, dict[str, Any]]:
    monkeypatch.setenv("TARN_SECRETS_DIR", str(folder))
    found = Settings()
    return found, runpy.run_path(str(CONFIG), init_globals={"get_config": lambda: found})


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    (tmp_path / "jupyter_token").write_text(TOKEN)
    return tmp_path


def test_the_token_is_the_one_of_the_file_and_every_guard_is_on(
    monkeypatch: pytest.MonkeyPatch, secrets: Path
) -> None:
    c, _ = load(monkeypatch, secrets)
    assert vars(c.IdentityProvider) == {"token": TOKEN}
    server = vars(c.ServerApp)
    assert server["allow_remote_access"] is False
    assert server["local_hostnames"] == ["localhost"]
    assert server["allow_origin"] == ""
    assert "allow_origin_pat" not in server
    assert server["allow_root"] is False
    assert server["disable_check_xsrf"] is False
    assert server["terminals_enabled"] is False
    assert server["jpserver_extensions"]["jupyter_server_terminals"] is False


@pytest.mark.parametrize("text", ["", "short", "t" * 31])
def test_a_token_that_keeps_nobody_out_stops_the_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    (tmp_path / "jupyter_token").write_text(text)
    with pytest.raises(ValueError, match=r"jupyter_token has \d+ characters, needed are 32"):
        load(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("remote", "known"),
    [
        ("sc://spark:15002", "sc://spark:15002/;authorization=Bearer%20s-token"),
        ("sc://mine:1/;use_ssl=true;token=own", "sc://mine:1/;use_ssl=true;token=own"),
    ],
)
def test_kernels_know_the_token_of_spark(
    monkeypatch: pytest.MonkeyPatch, secrets: Path, remote: str, known: str
) -> None:
    (secrets / "spark_token").write_text("s-token\n")
    monkeypatch.setenv("TARN_SPARK_REMOTE", remote)
    monkeypatch.setenv("TARN_SECRETS_DIR", str(secrets))
    runpy.run_path(str(CONFIG.with_name("ipython_kernel_config.py")))
    assert os.environ["TARN_SPARK_REMOTE"] == known


def test_it_listens_where_it_is_told(monkeypatch: pytest.MonkeyPatch, secrets: Path) -> None:
    assert load(monkeypatch, secrets)[0].ServerApp.ip == "0.0.0.0"
    monkeypatch.setenv("TARN_JUPYTER_LISTEN", "jupyter.own")
    assert load(monkeypatch, secrets)[0].ServerApp.ip == "jupyter.own"


def test_no_token_stops_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(monkeypatch, tmp_path)
    text = (CONFIG.parent / "Dockerfile").read_text(encoding="utf-8")
    assert "TRAITLETS_APPLICATION_RAISE_CONFIG_FILE_ERROR=1" in text, "else the server would start without"


def test_log_lines_are_json_and_a_stop_is_no_error(monkeypatch: pytest.MonkeyPatch, secrets: Path) -> None:
    _, names = load(monkeypatch, secrets)
    lines = names["JsonLines"]()

    def line(level: int, text: str) -> dict[str, str]:
        record = logging.LogRecord("ServerApp", level, "f", 1, text, None, None)
        found: dict[str, str] = json.loads(lines.format(record))
        return found

    assert line(logging.ERROR, " boom\nbang ")["event"] == "boom\nbang"
    assert line(logging.ERROR, "boom")["level"] == "error"
    assert line(logging.CRITICAL, "received signal 15, stopping")["level"] == "info"
    assert line(logging.CRITICAL, "anything else")["level"] == "critical"
