"""The clone's own settings: project name, .env, ports."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import pytest
import yaml
from tarn_host.console import StopError
from tarn_host.stack import checks, engine, images, lifecycle, project


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


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"20000" # mine', "20000"),
        ("'20000'   # mine", "20000"),
        ('"20000"# mine', "20000"),
        ('"a # b" # "c"', "a # b"),
        ("'a' # it's", "a"),
        ('"" # none', ""),
        (r'"a\"b" # c', 'a"b'),
        (r"'C:\x'", r"C:\x"),
        ('"a" b', '"a" b'),
        ("a#b # c", "a#b"),
    ],
)
def test_a_remark_behind_a_quoted_value_is_dropped_as_compose_does(text: str, value: str) -> None:
    assert project.parse_env(f"TARN_PORT_S3={text}\n") == {"TARN_PORT_S3": value}


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


@pytest.fixture
def env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(project, "ENV_FILE", tmp_path / ".env")
    return tmp_path / ".env"


SCRIPTS = {
    "TARN_NEED_DISK_MIB": lambda: "999 MiB" in checks.disk("/data", images_there=True, free_mib=7)[0].what,
    "TARN_NEED_MEMORY_MIB": lambda: "999 MiB" in checks.memory(7, running=False)[0].what,
    "TARN_WAIT_S": lambda: lifecycle.wait_timeout_s() == 999,
    "TARN_BUILD_JOBS": lambda: images.jobs() == 999,
    "TARN_ENGINE_DATA_ROOT": lambda: engine.data_root_wanted() == "999",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_settings_of_the_scripts_are_read_from_the_file_and_the_environment_wins(
    name: str, env_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    assert not SCRIPTS[name]()
    env_file.write_text(f'{name}="999" # mine\n')
    assert SCRIPTS[name]()
    monkeypatch.setenv(name, "998")
    assert not SCRIPTS[name]()
    monkeypatch.setenv(name, "999")
    env_file.unlink()
    assert SCRIPTS[name]()


def test_choices_are_remembered_below_the_users_own_lines_until_forgotten(env_file: Path) -> None:
    env_file.write_text("TARN_PORT_TRINO=7\n")
    told = {"TARN_PORT_S3": "20000", "TARN_PORT_TRINO": "20003", "TARN_PROFILE": "small"}
    here = project.load({}, told)
    assert project.write_env(here)
    again = project.load({})
    assert again.settings["TARN_PORT_S3"] == "20000"
    assert again.settings["TARN_PORT_TRINO"] == "7", "what the user wrote himself wins"
    assert "TARN_PORT_TRINO" in again.fixed
    assert "TARN_PORT_S3" not in again.fixed
    assert again.profile == "small"
    assert again.env()["TARN_PORT_S3"] == "20000"
    assert "TARN_PORT_TRINO" not in again.env()
    assert not project.write_env(again), "stable"
    forgotten = project.load({}, {"TARN_PORT_S3": "", "TARN_PROFILE": ""})
    project.write_env(forgotten)
    assert project.load({}).profile == "full"
    assert "TARN_PORT_S3" not in project.load({}).settings


def test_the_file_keeps_its_mode_and_stays_a_link(env_file: Path, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "my.env"
    real.parent.mkdir()
    real.write_text("TARN_DEMO=off\n")
    real.chmod(0o600)
    env_file.symlink_to(real)
    assert project.write_env(project.load({}))
    assert env_file.is_symlink()
    assert "TARN_DEMO=off\n# managed" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert [path.name for path in real.parent.iterdir()] == ["my.env"]


def test_bytes_of_any_encoding_in_the_users_lines_are_read_and_kept(env_file: Path) -> None:
    """Editors on Windows begin a file with a mark, which Compose leaves out, and may write Latin-1."""
    env_file.write_bytes(b"\xef\xbb\xbfTARN_PORT_S3=9900\n# f\xfcr Anna\nTARN_REGION=k\xf6ln\n")
    here = project.load({})
    assert here.settings["TARN_PORT_S3"] == "9900"
    assert os.fsencode(here.settings["TARN_REGION"]) == b"k\xf6ln"
    assert project.setting("TARN_PORT_S3") == "9900"
    assert project.write_env(here)
    assert env_file.read_bytes().startswith(
        b"TARN_PORT_S3=9900\n# f\xfcr Anna\nTARN_REGION=k\xf6ln\n# managed"
    )
    assert not project.write_env(project.load({})), "stable"


def test_a_new_file_has_the_mode_of_any_new_file(env_file: Path, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    (tmp_path / ".env.part").write_text("left by a run that was killed")
    assert project.write_env(project.load({}))
    assert env_file.stat().st_mode == (tmp_path / "other").stat().st_mode
    assert not (tmp_path / ".env.part").exists()


def test_a_run_under_another_name_remembers_nothing(env_file: Path) -> None:
    project.write_env(project.load({}, {"TARN_PROFILE": "small"}))
    other = project.load({"COMPOSE_PROJECT_NAME": "tarn-x-test"}, {"TARN_PROFILE": "", "TARN_PORT_S3": "1"})
    assert (other.profile, other.env()["TARN_PORT_S3"]) == ("full", "1")
    project.write_env(other)
    assert project.load({}).profile == "small"
    assert "TARN_PORT_S3" not in project.load({}).settings


def test_an_unknown_profile_is_refused(env_file: Path) -> None:
    with pytest.raises(StopError) as caught:
        project.load({"TARN_PROFILE": "tiny"})
    assert "TARN_PROFILE=tiny" in caught.value.what
    assert "full small" in caught.value.fix


@pytest.mark.parametrize("name", ["a/b", "My-Lake", "my lake", ".x", "-x", "lake:1", "ä", "x" * 101])
def test_a_name_that_compose_does_not_take_is_refused_before_anything_else(env_file: Path, name: str) -> None:
    with pytest.raises(StopError, match="is no name of a project") as caught:
        project.load({"COMPOSE_PROJECT_NAME": name})
    assert caught.value.code == 2
    for fine in ("my-lake", "1_x", "x" * 100):
        assert project.load({"COMPOSE_PROJECT_NAME": fine}).name == fine


def test_a_block_of_ports_is_stable_and_holds_every_port_of_the_compose_file() -> None:
    names = list(project.ports({}, project.COMPOSE_FILE.read_text()))
    block = project.port_block(20_000, names)
    assert set(block) == set(names)
    assert len(set(block.values())) == len(names)
    assert [block[f"TARN_PORT_{name}"] for name in project.PORT_ORDER] == [
        str(20_000 + n) for n in range(len(names))
    ]
    fewer = project.port_block(20_000, names[1:])
    assert fewer == {name: block[name] for name in names[1:]}
    assert project.port_block(5, ["TARN_PORT_Z", "TARN_PORT_A"]) == {"TARN_PORT_A": "15", "TARN_PORT_Z": "16"}


def test_what_a_container_mounts_is_made_readable_and_nothing_else_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "a.yaml").write_text("a")
    (folder / "b.yaml").write_text("b")
    (folder / "a.yaml").chmod(0o600)
    (folder / "b.yaml").chmod(0o644)
    folder.chmod(0o700)
    tmp_path.chmod(0o700)
    assert project.make_readable(folder) == ["specs", "specs/a.yaml"]
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "a.yaml", tmp_path)] == [
        0o755,
        0o644,
        0o700,
    ]
    assert project.make_readable(folder) == []


def test_specs_of_somebody_else_are_named_with_what_their_owner_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("a")
    (tmp_path / "a.yaml").chmod(0o600)
    tmp_path.chmod(0o755)

    def refuse(path: Path, mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(StopError, match=r"a\.yaml \(mode 600\)") as caught:
        project.make_readable(tmp_path)
    assert f"chmod -R a+rX {tmp_path}" in caught.value.fix


def test_another_catalog_is_another_compose_file_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text("CATALOG=reference\n")
    monkeypatch.setattr(project, "ENV_FILE", file)
    wanted = "docker-compose.yml:catalog/reference/compose.yml"
    assert project.load({}).env()["COMPOSE_FILE"] == wanted
    assert project.load({"COMPOSE_FILE": "mine.yml"}).env()["COMPOSE_FILE"].startswith("mine.yml:catalog/")
    named = project.load({"COMPOSE_FILE": "docker-compose.yml:./catalog/reference/compose.yml:own.yml"}).env()
    assert "COMPOSE_FILE" not in named, "a file that the user names stands there once, in the user's place"
    assert "COMPOSE_FILE" not in project.load({"CATALOG": "tarn"}).env(), "the environment wins"
    file.write_text("")
    assert "COMPOSE_FILE" not in project.load({}).env()
    assert project.load({"CATALOG": "reference"}).env()["COMPOSE_FILE"] == wanted
    with pytest.raises(StopError, match="CATALOG=refrence is no catalog") as error:
        project.load({"CATALOG": "refrence"})
    assert error.value.fix == "choose one of: tarn reference"


def test_the_reference_server_takes_the_place_of_the_catalog_and_nothing_else() -> None:
    text = (project.ROOT / project.CATALOG_FILES["reference"]).read_text()
    stack = yaml.safe_load(project.COMPOSE_FILE.read_text())["services"]
    own = yaml.safe_load(text.replace("!override ", ""))["services"]
    assert set(own) == {"catalog", "reaper", "trino"}
    assert own["trino"] == {"environment": {"TARN_TRINO_ACCESS": "open"}}, "it has no principals to ask for"
    (port,) = own["catalog"]["ports"]
    assert port.rpartition(":")[0] == stack["catalog"]["ports"][0].rpartition(":")[0], "the same port outside"
    assert own["catalog"]["mem_limit"] == own["catalog"]["memswap_limit"]
    assert "ports: !override" in text, "Compose would publish both ports of the two files"
    assert own["reaper"] == {"profiles": ["own-catalog"]}, "it deletes what Tarn's own register does not name"


def test_several_replicas_are_another_compose_file_on_top(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text("TARN_CATALOG_REPLICAS=2\n")
    monkeypatch.setattr(project, "ENV_FILE", file)
    assert project.load({}).env()["COMPOSE_FILE"] == "docker-compose.yml:catalog/replicas/compose.yml"
    for one in ("1", ""):
        assert "COMPOSE_FILE" not in project.load({"TARN_CATALOG_REPLICAS": one}).env()
    for wrong in ("0", "9", "-1", "two", "2.0", "٢"):
        with pytest.raises(StopError, match="is no number of replicas") as error:
            project.load({"TARN_CATALOG_REPLICAS": wrong})
        assert error.value.fix == "choose a number from 1 to 8"
    with pytest.raises(StopError, match="CATALOG=reference has no replicas"):
        project.load({"CATALOG": "reference"})


def test_the_front_takes_the_port_of_the_catalog_and_is_hardened_like_all_services() -> None:
    text = (project.ROOT / project.REPLICAS_FILE).read_text()
    stack = yaml.safe_load(project.COMPOSE_FILE.read_text())["services"]
    own = yaml.safe_load(text.replace("!override ", ""))["services"]
    assert set(own) == {"catalog", "catalog-front"}
    assert own["catalog"] == {"scale": "${TARN_CATALOG_REPLICAS:-2}", "ports": []}
    assert "ports: !override []" in text, "Compose would publish the port of the other file too"
    front = own["catalog-front"]
    assert front["ports"] == stack["catalog"]["ports"]
    for name in ("init", "read_only", "cap_drop", "security_opt", "restart", "stop_grace_period", "logging"):
        assert front[name] == stack["catalog"][name], name
    assert front["mem_limit"] == front["memswap_limit"]
    assert list(front["networks"]) == ["lake-catalog"], "it needs no store, and no network of an engine"
    config = (project.ROOT / "catalog/replicas/haproxy.cfg").read_text()
    (most,) = re.findall(r"server-template \S+ (\d+) catalog:8182 ", config)
    assert int(most) == project.REPLICAS_MAX


def test_a_link_that_leads_nowhere_is_no_file_to_make_readable(tmp_path: Path) -> None:
    """Emacs locks a file that is edited so."""
    (tmp_path / ".#a.yaml").symlink_to("me@host.1:1")
    tmp_path.chmod(0o755)
    assert project.make_readable(tmp_path) == []


def test_a_clone_that_was_moved_knows_its_former_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "ENV_FILE", tmp_path / ".env")
    monkeypatch.delenv("COMPOSE_PROJECT_NAME", raising=False)
    assert project.former_name() == ""
    own = project.default_name(project.ROOT)
    for written, former in ((own, ""), ("tarn-old", "tarn-old")):
        (tmp_path / ".env").write_text(project.merge_env("", {"COMPOSE_PROJECT_NAME": written}))
        assert project.former_name() == former
    (tmp_path / ".env").write_text(
        project.merge_env("COMPOSE_PROJECT_NAME=mine\n", {"COMPOSE_PROJECT_NAME": "tarn-old"})
    )
    assert project.former_name() == "", "the user named it"


def test_on_macos_the_case_in_which_a_path_was_typed_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = project.default_name(tmp_path)
    monkeypatch.setattr(project.fcntl, "F_GETPATH", 50, raising=False)
    real = os.fsencode(tmp_path)
    monkeypatch.setattr(project.fcntl, "fcntl", lambda handle, command, room: real.ljust(len(room), b"\0"))
    assert project.default_name(tmp_path) == plain
    other = tmp_path / "TYPED"
    other.mkdir()
    assert project.default_name(other) == plain, "what the disk says counts"

    def refused(handle: int, command: int, room: bytes) -> bytes:
        raise OSError

    monkeypatch.setattr(project.fcntl, "fcntl", refused)
    assert project.default_name(tmp_path) == plain
