"""Which images are built, in which order, and when a build can be skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tarn_host.doctor import look
from tarn_host.stack import base, images
from tarn_host.stack.images import Target, context_patterns, fingerprint, targets
from tarn_host.stack.project import Project


def test_targets_are_one_per_image_and_the_slow_ones_first() -> None:
    config = {
        "services": {
            "cli": {"image": "tarn/services:p", "build": {}},
            "init": {"image": "tarn/services:p", "build": {}},
            "minio": {"image": "tarn/minio:p", "build": {}},
            "trino": {"image": "tarn/trino:p", "build": {}},
            "other": {"image": "elsewhere:1"},
        }
    }
    found = targets(config)
    assert [t.short for t in found] == ["minio", "trino", "services"]
    assert found[-1] == Target(image="tarn/services:p", service="cli")


def test_context_patterns_are_the_lines_that_let_in() -> None:
    assert context_patterns("# note\n**\n!catalog\n!uv.lock\n**/*.pyc\n") == ["catalog", "uv.lock"]


def test_fingerprint_changes_with_what_the_context_holds_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("**\n!app\n!lock\n")
    app = tmp_path / "app"
    app.mkdir()
    (app / "a.py").write_text("1")
    (tmp_path / "lock").write_text("x")
    first = fingerprint(tmp_path, "salt")
    (tmp_path / "README.md").write_text("outside")
    (app / "__pycache__").mkdir()
    (app / "__pycache__" / "a.pyc").write_text("noise")
    (app / ".DS_Store").write_text("a folder that Finder showed")
    (app / ".ipynb_checkpoints").mkdir()
    (app / ".ipynb_checkpoints" / "a.ipynb").write_text("noise")
    assert fingerprint(tmp_path, "salt") == first
    seen = {first, fingerprint(tmp_path, "other base")}
    (app / "a.py").write_text("2")
    seen.add(fingerprint(tmp_path, "salt"))
    (app / "a.py").chmod(0o755)
    seen.add(fingerprint(tmp_path, "salt"))
    (app / "a.py").rename(app / "b.py")
    seen.add(fingerprint(tmp_path, "salt"))
    (tmp_path / "lock").write_text("y")
    seen.add(fingerprint(tmp_path, "salt"))
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("tail", "what", "fix"),
    [
        (["#9 12.3 write /out/minio: no space left on device"], "the disk ran full", "docker builder prune"),
        (
            ["E: You don't have enough free space in /var/cache/apt/archives/."],
            "the disk ran full",
            "free some",
        ),
        (["uv: invalid peer certificate: UnknownIssuer"], "not trusted", "scripts/up --refresh"),
        (["javac: a mistake"], "", "finished steps are kept"),
    ],
)
def test_a_build_that_failed_names_its_cause(tail: list[str], what: str, fix: str) -> None:
    found = images.failure("tarn/minio:t", "exit code 1", ["#1 before", *tail])
    assert found.what.startswith("building tarn/minio:t failed (exit code 1):\n    #1 before")
    assert what in found.what
    assert fix in found.fix
    assert str(images.LOG) in found.fix


def test_a_spec_that_was_added_is_no_reason_to_call_the_images_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".dockerignore").write_text("**\n!services\n")
    specs = tmp_path / "services/specs"
    specs.mkdir(parents=True)
    code = tmp_path / "services/app.py"
    code.write_text("1")
    monkeypatch.setattr(images, "ROOT", tmp_path)
    monkeypatch.setattr(images, "SPECS", specs)
    monkeypatch.setattr(images, "RECORD", tmp_path / "images.json")
    monkeypatch.setattr(images, "image_ids", lambda names: {})
    here = Project(name="t", base="b", own_base=True, settings={})
    config: dict[str, dict[str, str]] = {"services": {}}
    assert images.changed(here, config) is None
    images.build(here, config, offline=True)
    assert images.changed(here, config) is False
    (specs / "mine.yaml").write_text("a spec")
    assert images.changed(here, config) is False
    code.write_text("2")
    assert images.changed(here, config) is True


@pytest.mark.parametrize("log", ["base", "build"])
def test_a_build_with_nothing_to_do_ends_what_an_earlier_failure_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str
) -> None:
    """A change that does not build is taken back; a base cannot be made again, and the former one stays."""
    (tmp_path / ".dockerignore").write_text("**\n")
    for module in (images, look):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(images, "RECORD", tmp_path / "images.json")
    monkeypatch.setattr(images, "image_ids", lambda names: {})
    monkeypatch.setattr(images, "own_builder", dict)
    here = Project(name="t", base="b", own_base=True, settings={})
    images.build(here, {"services": {}}, offline=True)
    failed = {"base": base.LOG, "build": images.LOG}[log]
    failed.parent.mkdir(exist_ok=True)
    failed.write_text("no space left on device\n")
    long_ago = failed.stat().st_mtime - 3600
    os.utime(images.RECORD, (long_ago, long_ago))
    if log == "base":
        images.LOG.unlink(missing_ok=True)
    assert [Path(one.path).name for one in look.failed_logs()] == [failed.name]
    assert "nothing changed" in images.build(here, {"services": {}}, offline=True)
    assert look.failed_logs() == ()
