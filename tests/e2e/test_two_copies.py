"""Two copies of Tarn side by side, from clones of one folder name: nothing is shared or mixed up."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tarn_host.stack import project

from tests.support.stack import ENGINE_S, LONG_RUNNING, Answer, Stack, eventually, run

pytestmark = [
    pytest.mark.in_turn(6, "two copies of Tarn on one machine share or mix up something"),
    pytest.mark.timeout(1_800),
]

WELL_S = 240
FOREIGN = ("COMPOSE_PROJECT_NAME", "TARN_")
KINDS = {
    "containers": ["ps", "--all", "--format", "{{.Names}}"],
    "volumes": ["volume", "ls", "--format", "{{.Name}}"],
    "networks": ["network", "ls", "--format", "{{.Name}}"],
}


@dataclass(frozen=True)
class Copy:
    """A second clone with a small stack."""

    root: Path
    up: Answer

    def script(self, name: str, *words: str, timeout_s: float = 300) -> Answer:
        """Run one of its scripts without the environment of this session."""
        return script(self.root, name, *words, timeout_s=timeout_s)

    @property
    def settings(self) -> dict[str, str]:
        """The settings in its .env."""
        return project.parse_env((self.root / ".env").read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        """Its Compose project."""
        return self.settings["COMPOSE_PROJECT_NAME"]


def script(root: Path, name: str, *words: str, timeout_s: float) -> Answer:
    env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN)}
    done = subprocess.run(
        [str(root / "scripts" / name), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        env=env,
        check=False,
    )
    return Answer(code=done.returncode, text=done.stdout.decode(errors="replace"))


@pytest.fixture(scope="module")
def second(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A second clone, with an .env that has this session's ports: as if the folder had been copied."""
    root = tmp_path_factory.mktemp("b") / project.ROOT.name
    cloned = run(["git", "clone", "--quiet", str(project.ROOT), str(root)], timeout_s=120)
    assert cloned.code == 0, cloned.text
    (root / ".env").write_text(project.merge_env("", stack.ports), encoding="utf-8")
    up = script(root, "up", "--yes", "--small", "--no-demo", timeout_s=900)
    try:
        assert up.code == 0, up.text[-6000:]
        yield Copy(root=root, up=up)
    finally:
        name = project.default_name(root)
        script(root, "down", "--purge", "--yes", timeout_s=300)
        tags = [tag for tag in images() if tag.endswith(f":{name}")]
        if tags:
            run(["docker", "image", "rm", *tags], timeout_s=ENGINE_S)
        shutil.rmtree(root, ignore_errors=True)


def of(name: str) -> dict[str, set[str]]:
    """The engine's objects of a project, by kind."""
    mine = f"label=com.docker.compose.project={name}"
    return {
        kind: set(run(["docker", *words, "--filter", mine], timeout_s=ENGINE_S).text.split())
        for kind, words in KINDS.items()
    }


def images() -> set[str]:
    listed = run(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], timeout_s=ENGINE_S)
    return {tag for tag in listed.text.split() if tag.startswith("tarn/")}


def published(name: str) -> set[str]:
    mine = f"label=com.docker.compose.project={name}"
    rows = run(["docker", "ps", "--filter", mine, "--format", "{{.Ports}}"], timeout_s=ENGINE_S).text
    return {part.partition("->")[0].strip() for part in rows.replace("\n", ",").split(",") if "->" in part}


def started(stack: Stack) -> dict[str, tuple[str, str]]:
    return {name: (stack.container(name), stack.inspect(name)["State"]["StartedAt"]) for name in LONG_RUNNING}


def notes(answer: Answer) -> set[str]:
    """The words in an output of `sql --csv`."""
    assert answer.code == 0, answer.text
    return set(answer.text.split())


def test_the_second_takes_ports_of_its_own_and_says_so(stack: Stack, second: Copy) -> None:
    assert f"taken by the copy of Tarn in {project.ROOT}" in second.up.text
    chosen = {name: second.settings[name] for name in stack.ports}
    assert not set(chosen.values()) & set(stack.ports.values())
    assert min(int(port) for port in chosen.values()) >= 20_000
    assert "pyiceberg alone reads back" in second.up.text
    assert second.settings["TARN_PROFILE"] == "small"


def test_nothing_is_shared(stack: Stack, second: Copy) -> None:
    assert second.root.name == project.ROOT.name
    assert second.root != project.ROOT
    first, other = of(stack.name), of(second.name)
    for kind, names in first.items():
        assert len(names) >= 3, kind
        assert len(other[kind]) >= 3, kind
        assert not names & other[kind], kind
    assert len(published(second.name)) == 5
    assert not published(stack.name) & published(second.name)
    assert {tag for tag in images() if tag.endswith(f":{second.name}")} == {
        f"tarn/{image}:{second.name}" for image in ("minio", "catalog", "kafka", "services")
    }
    assert not {name for name in other["containers"] if "spark" in name or "trino" in name}


def test_a_row_of_one_is_not_in_the_other(stack: Stack, second: Copy) -> None:
    query = ("sql", "--engine", "duckdb", "--csv", "SELECT note FROM ops.canary")
    for copy, note in ((stack, "from-the-first"), (second, "from-the-second")):
        sent = copy.script("tarn", "canary", "--note", note)
        assert sent.code == 0, sent.text
    here, there = notes(stack.script("tarn", *query)), notes(second.script("tarn", *query))
    assert "from-the-first" in here
    assert "from-the-second" not in here
    assert "from-the-second" in there
    assert "from-the-first" not in there


def test_status_and_doctor_of_the_small_one_miss_nothing(second: Copy) -> None:
    """Each may be asked again: two stacks that have just started keep all cores busy."""
    for words in (("tarn", "status"), ("doctor",)):
        said: list[str] = []

        def well(words: tuple[str, ...] = words, said: list[str] = said) -> bool:
            answer = second.script(*words)
            said.append(answer.text)
            return answer.code == 0

        eventually(well, timeout_s=WELL_S, what=lambda words=words, said=said: f"{words} well; {said[-1]}")
        assert "DOWN" not in said[-1]


def test_removing_one_leaves_the_other_whole(stack: Stack, second: Copy) -> None:
    before, kept = started(stack), of(stack.name)
    gone = second.script("down", "--purge", "--yes")
    assert gone.code == 0, gone.text
    assert of(second.name) == {kind: set() for kind in KINDS}
    assert of(stack.name) == kept
    assert started(stack) == before
    sent = stack.script("tarn", "canary")
    assert sent.code == 0, sent.text
