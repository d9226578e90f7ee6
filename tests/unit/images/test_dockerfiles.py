"""Common rules of Tarn's Dockerfiles: file modes, caches, layers affected by a change of the lock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = [*sorted(ROOT.glob("*/Dockerfile")), ROOT / "services/kafka/Dockerfile"]
PYTHON = ("services", "catalog", "notebooks", "spark")
PROGRAMS = ("entrypoint", "mvn")


def instructions(path: Path) -> list[str]:
    """The instructions of a Dockerfile, each on one line."""
    rows = [row for row in path.read_text().splitlines() if not row.lstrip().startswith("#")]
    return [
        " ".join(one.split()) for one in re.sub(r"\\\n", " ", "\n".join(rows)).splitlines() if one.strip()
    ]


def stages(path: Path) -> dict[str, list[str]]:
    """The stages of a Dockerfile by name; the last one is called `last`."""
    found: dict[str, list[str]] = {}
    name = ""
    for one in instructions(path):
        if one.startswith("FROM "):
            name = one.partition(" AS ")[2] or "last"
            found[name] = []
        if name:
            found[name].append(one)
    return found


def name_of(path: Path) -> str:
    return str(path.parent.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCKERFILES, ids=name_of)
def test_what_is_copied_from_the_clone_has_a_mode_of_its_own(path: Path) -> None:
    """A clone made under umask 077 has files that no container user could read."""
    copies = [one for one in instructions(path) if one.startswith(("COPY", "ADD"))]
    mine = [one for one in copies if "--from=" not in one]
    assert mine
    for one in mine:
        match = re.match(r"COPY --chmod=0(644|755) (.*) \S+$", one)
        assert match, one
        for word in match[2].split():
            for source in ROOT.glob(word):
                wanted = "755" if source.is_dir() or source.name in PROGRAMS else "644"
                assert match[1] == wanted, f"{one}: {word} needs 0{wanted}"


@pytest.mark.parametrize("name", PYTHON)
def test_only_the_part_of_the_lock_that_an_image_needs_is_the_key_of_its_layers(name: str) -> None:
    parts = stages(ROOT / name / "Dockerfile")
    with_lock = [stage for stage, rows in parts.items() if any("uv.lock" in row for row in rows)]
    assert with_lock == ["lock"]
    taken = [row for rows in parts.values() for row in rows if "--from=lock" in row]
    assert taken == ["COPY --from=lock /requirements.txt /requirements.txt"]
    assert not [row for rows in parts.values() for row in rows if row.startswith("FROM lock")]


@pytest.mark.parametrize("name", PYTHON)
def test_everything_is_installed_by_hash_and_builds_with_what_is_pinned(name: str) -> None:
    rows = [row for part in stages(ROOT / name / "Dockerfile").values() for row in part]
    runs = {}
    for command in (one for row in rows for one in row.split(" && ")):
        if found := re.search(r"(?:uv )?pip (?:install|sync)\b", command):
            assert runs.setdefault(found[0], command) == command, f"a second {found[0]}"
    assert sorted(runs) == ["pip install", "uv pip install", "uv pip sync"], "uv, the lock, this clone"
    assert "--require-hashes" in runs["pip install"]
    locked, own = runs["uv pip sync"], runs["uv pip install"]
    assert "--require-hashes" in locked
    assert "--no-build " in locked or "--build-constraints /build.txt" in locked
    assert "--no-deps" in own
    assert "--build-constraints /build.txt" in own


def test_the_stages_of_uv_are_word_for_word_the_same_so_that_they_are_made_once() -> None:
    first, *rest = [stages(ROOT / name / "Dockerfile")["uv"] for name in PYTHON]
    assert all(one == first for one in rest)


def test_what_runs_python_by_module_name_imports_nothing_from_its_folder() -> None:
    """`python -m` in /tmp would import any file left there."""
    text = (ROOT / "docker-compose.yml").read_text()
    commands = re.findall(r'command: \["python", "-m", "(\S+?)"', text)
    assert len(commands) >= 4
    for name in ("services", "catalog", "spark"):
        last = " ".join(row for rows in stages(ROOT / name / "Dockerfile").values() for row in rows)
        assert "PYTHONSAFEPATH=1" in last, name
    assert (
        yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["ingest"]["command"][1] == "-m"
    )


def test_a_lock_of_build_tools_stands_for_those_of_the_workspace() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(\S+) ", (ROOT / "build.txt").read_text(), re.MULTILINE))
    text = (ROOT / "pyproject.toml").read_text()
    wanted = dict(
        re.findall(r'"([\w-]+)==([\d.]+)"', re.findall(r"build-constraint-dependencies = \[(.*?)\]", text)[0])
    )
    assert {"hatchling", "setuptools", "wheel"} == set(wanted)
    assert wanted.items() <= pinned.items()
    assert (ROOT / "build.txt").read_text().count("--hash=sha256:") >= len(pinned)


def test_test_doubles_are_in_no_image() -> None:
    """The last pattern that matches decides, so the exclusion follows the line that lets services in."""
    rows = (ROOT / ".dockerignore").read_text().splitlines()
    assert (ROOT / "services/tarn/testing/__init__.py").is_file()
    assert rows.index("services/tarn/testing") > rows.index("!services")
