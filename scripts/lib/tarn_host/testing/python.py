"""Virtual environment of the tests: uv from PyPI, verified by hash, then uv.lock installed into .venv."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from tarn_host import shell
from tarn_host.console import StopError, line
from tarn_host.stack import apt, project
from tarn_host.stack.project import ROOT, version_of

VENV = ROOT / ".venv"
UV_HOME = project.STATE_DIR / "uv"
PINS = ROOT / "uv.txt"
STAMP = VENV / ".tarn-synced"
LOG = project.LOG_DIR / "venv.log"
TIMEOUT_S = 900
INPUTS = ("uv.lock", "pyproject.toml", "*/pyproject.toml", "services/*/pyproject.toml")


def python() -> Path:
    """The interpreter of the tests."""
    return VENV / "bin" / "python"


def tool(name: str) -> str:
    """A program of the virtual environment."""
    return str(VENV / "bin" / name)


def ensure() -> str:
    """Bring .venv in line with uv.lock; return a sentence about it.

    Raises:
        StopError: uv or a package could not be installed.
    """
    project.LOG_DIR.mkdir(parents=True, exist_ok=True)
    mark = _mark()
    if python().exists() and STAMP.is_file() and STAMP.read_text() == mark:
        return ".venv is up to date"
    uv = _uv()
    line("    installing what uv.lock names into .venv")
    env = {"UV_PROJECT_ENVIRONMENT": str(VENV), "VIRTUAL_ENV": ""}
    env.setdefault("UV_SYSTEM_CERTS", os.environ.get("UV_SYSTEM_CERTS", "1"))
    command = [str(uv), "sync", "--locked", "--no-progress"]
    fix = "check the network; if uv.lock is said to be out of date, run `uv lock` and commit it"
    shell.logged(command, LOG, timeout_s=TIMEOUT_S, what="uv sync", fix=fix, env=env, cwd=ROOT)
    STAMP.write_text(mark)
    return ".venv was made"


def _mark() -> str:
    """Hash of everything that .venv depends on."""
    digest = hashlib.sha256(version_of("UV_VERSION").encode())
    for pattern in INPUTS:
        for file in sorted(ROOT.glob(pattern)):
            digest.update(f"\0{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _uv() -> Path:
    """Tarn's own uv, of the pinned version and hash."""
    uv = UV_HOME / "bin" / "uv"
    version = version_of("UV_VERSION")
    if uv.exists() and shell.capture([str(uv), "--version"], timeout_s=20).out.split()[1:2] == [version]:
        return uv
    if f"uv=={version} " not in PINS.read_text(encoding="utf-8"):
        raise StopError(
            f"{PINS} does not pin uv {version}, the UV_VERSION of versions.env", "make it again: see its head"
        )
    line(f"    installing uv {version} into .tarn/uv")
    shutil.rmtree(UV_HOME, ignore_errors=True)
    if not _make_venv(UV_HOME):
        raise StopError(
            f"`{sys.executable} -I -m venv` fails: see {LOG}",
            "install Python's venv module (Debian: python3-venv)",
        )
    command = [
        str(UV_HOME / "bin/python"),
        "-I",
        "-m",
        "pip",
        "install",
        "--require-hashes",
        "--no-deps",
        "-r",
        str(PINS),
    ]
    command += ["--disable-pip-version-check", "--no-input"]
    shell.logged(
        command, LOG, timeout_s=TIMEOUT_S, what="installing uv", fix="check the network and pip's settings"
    )
    return uv


def _make_venv(folder: Path) -> bool:
    """Create a virtual environment with pip; as root on Debian, install the venv module if it is missing."""
    command = [sys.executable, "-I", "-m", "venv", str(folder)]
    if shell.capture(command, timeout_s=120).ok:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    if not (apt.is_debian() and hasattr(os, "geteuid") and os.geteuid() == 0):
        return False
    line("    installing python3-venv")
    apt.install(["python3-venv"], LOG, timeout_s=TIMEOUT_S)
    return shell.capture(command, timeout_s=120).ok
