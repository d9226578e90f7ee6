"""The clone's own settings: project name, .env, ports."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tarn_host import project


def test_default_name_is_six_hex_digits_of_the_real_path(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    link = tmp_path / "link"
    link.symlink_to(clone)
    wanted = "tarn-" + hashlib.sha256(str(clone).encode()).hexdigest()[:6]
    assert project.default_name(clone) == wanted
    assert project.default_name(link) == wanted
    assert project.default_name(tmp_path) != wanted


def test_parse_env_drops_comments_quotes_and_trailing_remarks() -> None:
    text = "# A=1\nB=2\nexport C='x y'\nD = \"z\"\nE=v # why\nnot a line\nF=\n"
    assert project.parse_env(text) == {"B": "2", "C": "x y", "D": "z", "E": "v", "F": ""}


def test_merge_env_keeps_the_users_lines_and_is_stable() -> None:
    once = project.merge_env("TARN_PORT_S3=9900\n", {"COMPOSE_PROJECT_NAME": "tarn-1", "TARN_BASE": "b"})
    assert once.splitlines()[0] == "TARN_PORT_S3=9900"
    assert project.parse_env(once) == {
        "TARN_PORT_S3": "9900",
        "COMPOSE_PROJECT_NAME": "tarn-1",
        "TARN_BASE": "b",
    }
    assert project.merge_env(once, {"COMPOSE_PROJECT_NAME": "tarn-1", "TARN_BASE": "b"}) == once


def test_merge_env_recomputes_a_copied_clone_but_never_the_users_own_name() -> None:
    copied = project.merge_env("", {"COMPOSE_PROJECT_NAME": "tarn-old"})
    assert project.parse_env(project.merge_env(copied, {"COMPOSE_PROJECT_NAME": "tarn-new"})) == {
        "COMPOSE_PROJECT_NAME": "tarn-new"
    }
    own = project.merge_env("COMPOSE_PROJECT_NAME=mine\n", {"COMPOSE_PROJECT_NAME": "tarn-new"})
    assert own.count("COMPOSE_PROJECT_NAME") == 1
    assert project.parse_env(own)["COMPOSE_PROJECT_NAME"] == "mine"


def test_load_takes_the_environment_before_env_file_before_defaults(
    tmp_path: Path, monkeypatch: object
) -> None:
    file = tmp_path / ".env"
    file.write_text(project.merge_env("TARN_PORT_S3=1\nTARN_PORT_TRINO=2\n", {"TARN_BASE": "managed"}))
    monkeypatch.setattr(project, "ENV_FILE", file)  # type: ignore[attr-defined]
    here = project.load({"TARN_PORT_S3": "3", "HOME": "/nowhere"})
    assert here.settings["TARN_PORT_S3"] == "3"
    assert here.settings["TARN_PORT_TRINO"] == "2"
    assert "HOME" not in here.settings
    assert here.own_base
    assert here.base != "managed", "a managed line is our own output, not the user's wish"
    assert here.name == project.default_name(project.ROOT)
    named = project.load({"COMPOSE_PROJECT_NAME": "other", "TARN_BASE": "some:base"})
    assert (named.name, named.base, named.own_base) == ("other", "some:base", False)


def test_every_published_port_of_the_compose_file_comes_from_a_variable() -> None:
    text = project.COMPOSE_FILE.read_text()
    found = project.ports({"TARN_PORT_S3": "9999"}, text)
    assert found["TARN_PORT_S3"] == "9999"
    assert found["TARN_PORT_CATALOG"] == "8181"
    published = [raw for raw in text.splitlines() if '"127.0.0.1:' in raw]
    assert len(published) >= 6
    assert all("${TARN_PORT_" in raw for raw in published)
