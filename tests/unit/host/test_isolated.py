"""Scripts import only the standard library and their own modules, whatever the working directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tarn_host.stack.project import ROOT


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
