"""Settings of scripts/up, from the command line and by its own choice: ports, the profile."""

from __future__ import annotations

from pathlib import Path

import pytest
from tarn_host import up
from tarn_host.console import StopError
from tarn_host.shell import Result
from tarn_host.stack import base, checks, engine, images, project
from tarn_host.stack.project import Project

NAMES = project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8"))


def test_nothing_told_nothing_chosen() -> None:
    assert up.choices(None, None) == {}


def test_a_first_port_moves_every_port() -> None:
    told = up.choices("small", "20000")
    assert told.pop("TARN_PROFILE") == "small"
    assert set(told) == set(NAMES)
    assert min(int(port) for port in told.values()) == 20_000


def test_default_and_full_forget() -> None:
    told = up.choices("full", "default")
    assert set(told) == {*NAMES, "TARN_PROFILE"}
    assert set(told.values()) == {""}


@pytest.mark.parametrize("text", ["80", "65535", "http", "-1", "", "2²"])
def test_what_is_no_first_port_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(StopError) as caught:
        up.choices(None, text)
    assert caught.value.code == 2
    assert "20000" in caught.value.fix


@pytest.mark.parametrize("profile", ["full", "small"])
def test_a_profile_that_a_setting_hides_is_refused_with_where_it_is_set(
    monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    other = "small" if profile == "full" else "full"
    monkeypatch.delenv("TARN_PROFILE", raising=False)
    own = Project(
        name="t", base="b", own_base=True, settings={"TARN_PROFILE": other}, fixed=frozenset(["TARN_PROFILE"])
    )
    with pytest.raises(
        StopError, match=rf"--{profile} has no effect: TARN_PROFILE={other} is set .* in .env"
    ) as caught:
        up.require_profile(own, profile)
    assert caught.value.code == 2
    monkeypatch.setenv("TARN_PROFILE", other)
    with pytest.raises(StopError, match="in the environment"):
        up.require_profile(own, profile)
    up.require_profile(own, other)
    up.require_profile(own, None)
    stored = Project(name="t", base="b", own_base=True, settings={"TARN_PROFILE": other})
    up.require_profile(stored, profile)


def here(fixed: frozenset[str] = frozenset()) -> Project:
    return Project(name="tarn-1", base="b", own_base=True, settings={}, fixed=fixed)


WANTED = {"TARN_PORT_S3": "9000", "TARN_PORT_TRINO": "8080"}
OTHER = checks.Published(holders={9000: "container x"}, tarns={9000: "/b/tarn"})


@pytest.fixture(autouse=True)
def nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_taken", lambda port: False)


def test_a_copy_makes_way_for_another_copy_with_all_its_ports(capsys: pytest.CaptureFixture[str]) -> None:
    moved = up._make_way(here(), WANTED, OTHER)
    assert moved == {"TARN_PORT_S3": "20000", "TARN_PORT_TRINO": "20003"}
    said = capsys.readouterr().out
    assert "taken by the copy of Tarn in /b/tarn: 9000" in said
    assert "20000 to 20003" in said


def test_a_port_that_the_user_named_is_never_moved() -> None:
    assert up._make_way(here(frozenset({"TARN_PORT_S3"})), WANTED, OTHER) == {}
    other = checks.Published(holders={8080: "container x"}, tarns={8080: "/b/tarn"})
    moved = up._make_way(here(frozenset({"TARN_PORT_S3"})), WANTED, other)
    assert moved == {"TARN_PORT_TRINO": "20003"}


def test_nobody_makes_way_for_anything_else() -> None:
    assert up._make_way(here(), WANTED, checks.Published(holders={9000: "container web"})) == {}


def test_times_that_cannot_be_written_are_reported_and_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "load", lambda *_, **__: Project("t", "b", True, {"TARN_DEMO": "what"}))
    assert up.main(["--timings", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "TARN_DEMO is what" in said
    assert f"the times could not be written to {tmp_path}: Is a directory" in said


@pytest.mark.parametrize(
    ("own_base", "base_there", "refresh", "needed_mib"),
    [
        (True, True, False, checks.DISK_MIB_WARM),
        (False, False, False, checks.DISK_MIB_WARM),
        (True, False, False, checks.DISK_MIB_COLD),
        (True, True, True, checks.DISK_MIB_COLD),
        (False, True, True, checks.DISK_MIB_COLD),
    ],
)
def test_images_on_a_base_that_is_made_again_need_the_disk_of_a_first_build(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_base: bool,
    base_there: bool,
    refresh: bool,
    needed_mib: int,
) -> None:
    """Their fingerprint has the base's id: all are built, whatever images of another base are there."""
    monkeypatch.delenv("TARN_NEED_DISK_MIB", raising=False)
    found = engine.Engine(server="27.0", error="", compose="2.30", data_root="/", memory_bytes=None)
    monkeypatch.setattr(engine, "look", lambda: found)
    monkeypatch.setattr(engine, "plan", lambda *_, **__: (engine.Plan(), []))
    monkeypatch.setattr(images, "built_somewhere", lambda names: True)
    monkeypatch.setattr(base, "is_there", lambda image: base_there)
    monkeypatch.setattr(checks, "published", lambda name: checks.Published())
    monkeypatch.setattr(checks, "memory", lambda *_, **__: [])
    monkeypatch.setattr(up.shell, "capture", lambda *_, **__: Result(0, "", ""))
    own = Project(name="tarn-1", base="b", own_base=own_base, settings={})
    monkeypatch.setattr(checks, "free_mib", lambda path: needed_mib)
    up.check(own, offline=False, ports=False, refresh=refresh)
    monkeypatch.setattr(checks, "free_mib", lambda path: needed_mib - 1)
    with pytest.raises(StopError):
        up.check(own, offline=False, ports=False, refresh=refresh)
    assert f"needed are {needed_mib} MiB" in capsys.readouterr().err
