"""The debootstrap base is as small as the slim image of a registry, and can be rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tarn_host.console import StopError
from tarn_host.stack import base, project
from tarn_host.stack.project import Project

HERE = Project(name="t", base="tarn/base:x", own_base=True, settings={})


def test_no_download_cache_or_document_stays_but_licences_do(tmp_path: Path) -> None:
    kept = ("usr/share/doc/bash/copyright", "usr/share/zoneinfo/UTC", "usr/bin/bash")
    gone = ("usr/share/doc/bash/README", "usr/share/man/man1/bash.1", "usr/share/locale/de/LC_MESSAGES/x.mo")
    for name in (*kept, *gone):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    base.make_slim(tmp_path)
    assert [name for name in (*kept, *gone) if (tmp_path / name).exists()] == list(kept)
    clean = (tmp_path / "etc/apt/apt.conf.d/docker-clean").read_text()
    assert clean.count("/var/cache/apt/*.bin") == 2
    assert 'Dir::Cache::pkgcache "";' in clean
    assert (
        "path-include /usr/share/doc/*/copyright"
        in (tmp_path / "etc/dpkg/dpkg.cfg.d/docker-slim").read_text()
    )


def test_a_base_that_is_there_is_made_again_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    answer: Any = type("Answer", (), {"ok": True})()
    monkeypatch.setattr(base, "is_there", lambda image: True)
    monkeypatch.setattr(base.shell, "capture", lambda *_, **__: answer)
    monkeypatch.setattr(base, "_derive", lambda image, upstream: made.append(image))
    assert base.ensure(HERE, offline=False) == "tarn/base:x is there"
    assert made == []
    base.ensure(HERE, offline=False, refresh=True)
    assert made == ["tarn/base:x"]


def test_without_the_network_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "is_there", lambda image: False)
    with pytest.raises(StopError, match="--pull never forbids fetching it"):
        base.ensure(HERE, offline=True)


def test_every_certificate_of_this_machine_goes_into_the_base_and_none_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders have one of the same name; a link is left of a package that was removed."""
    own = tmp_path / "own"
    for name in ("corp/root.crt", "lab/root.crt"):
        (own / name).parent.mkdir(parents=True)
        (own / name).write_text(name)
    (own / "gone.crt").symlink_to(tmp_path / "removed.crt")
    seen: list[str] = []
    folders: set[Path] = set()
    monkeypatch.setattr(project, "STATE_DIR", tmp_path / "state")

    def build(command: list[str], *_: object) -> None:
        copied = Path(command[-1]) / "certificates"
        folders.add(copied.parents[1])
        seen.extend(sorted(path.read_text() for path in copied.rglob("*.crt")))

    monkeypatch.setattr(base, "_logged", build)
    monkeypatch.setattr(base, "CA_DIR", own)
    monkeypatch.setattr(base.own_certificates, "__defaults__", (own,))
    monkeypatch.setattr(base.copy_certificates, "__defaults__", (own,))
    base._derive("tarn/base:x", "debian:x")
    assert seen == ["corp/root.crt", "lab/root.crt"]
    assert folders == {tmp_path / "state"}, "a client that snap installed sees no other /tmp"


def test_a_certificate_that_this_user_may_not_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "corp.crt").write_text("x")

    def refused(source: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(source))

    monkeypatch.setattr(base.shutil, "copy", refused)
    with pytest.raises(StopError, match=r"corp\.crt, which this machine trusts, cannot be read") as caught:
        base.copy_certificates(tmp_path / "copy", own)
    assert f"chmod a+r {own}/corp.crt" in caught.value.fix


def test_a_base_that_fails_names_a_command_for_a_ca_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "LOG", tmp_path / "base.log")
    fails = ["sh", "-c", "echo 'SSL certificate problem: unable to get local issuer certificate'; exit 1"]
    with pytest.raises(StopError, match="not trusted inside the build") as caught:
        base._logged(fails, 10, "debootstrap", "x")
    assert "scripts/up --refresh" in caught.value.fix
