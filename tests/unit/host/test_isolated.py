"""Scripts import only the standard library and their own modules, whatever the working directory."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tarn_host.console import line
from tarn_host.stack.project import ROOT


@pytest.mark.long
@pytest.mark.parametrize("script", ["up", "down", "tarn", "test", "doctor", "bench", "sbom"])
def test_nothing_is_imported_from_the_folder_that_somebody_stands_in(script: str, tmp_path: Path) -> None:
    """The names are modules that every script imports, of the standard library and of Tarn."""
    for name in ("json", "argparse", "subprocess", "pathlib", "re", "tarn_host", "runpy", "importlib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    done = subprocess.run(
        [str(ROOT / "scripts" / script), "--help"],
        cwd=tmp_path,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    if script != "tarn":  # its help is printed by the image
        assert b"usage: scripts/" in done.stdout
    assert b"Traceback" not in done.stderr


def test_the_python_of_the_scripts_may_lie_in_a_folder_with_a_space(tmp_path: Path) -> None:
    own = tmp_path / "my python" / "python3"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\ntouch "{tmp_path}/ran"\nexec "{sys.executable}" "$@"\n')
    own.chmod(0o755)
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TARN_PYTHON": str(own)}
    command = [str(ROOT / "scripts/down"), "--help"]
    done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=False)
    assert b"usage: scripts/down" in done.stdout
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("encoding", ["utf-8", "iso-8859-1"])
def test_what_the_terminal_cannot_show_is_escaped_and_ends_no_script(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone in a folder whose name is not UTF-8, and a terminal that is not."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding=encoding, errors="strict"))
    monkeypatch.setattr(sys, "argv", ["start.py", "said"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    said = type(sys)("tarn_host.said")
    said.main = lambda: line("k\udcf6ln \u2500")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tarn_host.said", said)
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "scripts/lib/start.py"), run_name="__main__")
    sys.stdout.flush()
    assert out.getvalue().startswith(b"k\\udcf6ln ")
