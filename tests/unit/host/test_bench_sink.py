"""The container of `scripts/bench peers` with Iceberg's sink: pinned, hardened, and removed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from tarn_host import shell
from tarn_host.bench import peers, sink
from tarn_host.console import StopError
from tarn_host.stack import project
from tarn_host.stack.project import ROOT

from tarn.core.services import SERVICES
from tarn_demo.bench import sink as verbs

HERE = Path(sink.__file__).parent / "connect"


def pinned(name: str) -> str:
    found = re.search(rf"<{name}\.version>(.*?)</", (HERE / "pom.xml").read_text())
    assert found
    return found[1]


def test_the_sink_has_the_versions_of_the_lake() -> None:
    lines = (ROOT / "versions.env").read_text().splitlines()
    versions = dict(row.split("=", 1) for row in lines if row and row[0] != "#")
    assert pinned("kafka") == versions["KAFKA_VERSION"]
    assert pinned("iceberg") == versions["SPARK_ICEBERG_VERSION"]
    assert pinned("hadoop") == versions["SPARK_HADOOP_VERSION"]
    assert f"sink* ({pinned('iceberg').rpartition('.')[0]})" in peers.ABOUT
    assert f"Kafka Connect {pinned('kafka').rpartition('.')[0]}," in peers.ABOUT


def test_every_jar_is_pinned_by_its_checksum() -> None:
    rows = (HERE / "jars.sha256").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  \./\S+\.jar", row) for row in rows)
    names = {row.split("  ./")[1] for row in rows}
    assert len(names) == len(rows)
    for part in re.findall(r"<dependency>\s*(.*?)</dependency>", (HERE / "pom.xml").read_text(), re.DOTALL):
        wanted = dict(re.findall(r"<(artifactId|version|type)>(.*?)</", part))
        version = pinned(wanted["version"].removeprefix("${").removesuffix(".version}"))
        if wanted.get("type") != "pom":
            assert f"{wanted['artifactId']}-{version}.jar" in names


def test_the_image_checks_the_list_and_shares_the_stages_of_others() -> None:
    text = (HERE / "Dockerfile").read_text()
    assert "sha256sum --check --quiet --strict /build/jars.sha256" in text
    assert 'test "$(find . -name \'*.jar\' | wc -l)" = "$(wc -l < /build/jars.sha256)"' in text
    nessie = (HERE.parent / "nessie/Dockerfile").read_text()
    stage = re.search(r"FROM \$\{BASE\} AS maven\n.*?\n\n", nessie, re.DOTALL)
    last = re.search(r"FROM \$\{BASE\}\nRUN.*?apt/lists/\*\n", nessie, re.DOTALL)
    assert stage
    assert last
    assert stage[0] in text
    assert last[0] in text


def test_the_worker_is_hardened_and_has_what_the_cli_has() -> None:
    services = yaml.safe_load(sink.COMPOSE_FILE.read_text())["services"]
    assert set(services) == {sink.SERVICE} == {verbs.HOST}
    worker = services[sink.SERVICE]
    assert (worker["cap_drop"], worker["read_only"]) == (["ALL"], True)
    assert worker["mem_limit"] == worker["memswap_limit"]
    assert "ports" not in worker
    assert worker["volumes"] == ["secrets-cli:/run/tarn/secrets:ro"]
    assert worker["user"] == f"{SERVICES['cli'].uid}:{SERVICES['cli'].uid}"
    own = yaml.safe_load(project.COMPOSE_FILE.read_text())["services"]
    assert set(worker["networks"]) <= set(own["cli"]["networks"]), "the cli asks it"
    assert sink.SERVICE not in own, "scripts/up never builds it"
    text = (HERE / "entrypoint").read_text()
    assert f":{verbs.PORT}\n" in text
    assert f"offset.flush.interval.ms={verbs.COMMIT_EVERY_MS}\n" in text, "else a drain ends a minute later"
    assert f"with {verbs.TASKS}\n  tasks" in peers.ABOUT
    assert text.index("umask 077") < text.index("$password")


class Stack:
    """A stack that notes what Compose is asked, and fails if wanted."""

    env: ClassVar[dict[str, str]] = {"COMPOSE_PROJECT_NAME": "mine"}

    def __init__(self, fails: bool = False) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._fails = fails

    def compose(self, *words: str) -> str:
        self.asked.append(words)
        if self._fails:
            raise StopError("no", "fix")
        return ""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Commands that are run beside Compose's; the log is in the test's folder."""
    found: list[list[str]] = []

    def capture(command: list[str], **_more: Any) -> shell.Result:
        found.append(command)
        return shell.Result(0, "its words", "")

    monkeypatch.setattr(shell, "capture", capture)
    monkeypatch.setattr(shell, "logged", lambda command, *_words, **_more: found.append(command))
    monkeypatch.setattr(sink, "LOG", tmp_path / "log")
    return found


def test_a_worker_is_removed_and_what_it_said_is_kept_if_it_failed(
    said: list[list[str]], tmp_path: Path
) -> None:
    stack: Any = Stack()
    with sink.worker(stack) as container:
        assert container == "mine-connect"
        assert said == []
    run = stack.asked[0]
    assert run[: len(sink.FILES)] == sink.FILES
    assert {"--use-aliases", "--no-deps"} <= set(run), "the cli finds it by its name"
    assert run[-3:] == ("--name", container, "connect")
    assert said == [["docker", "rm", "--force", "mine-connect"]]
    assert not (tmp_path / "log").exists()
    with pytest.raises(StopError), sink.worker(stack):
        raise StopError("wrong rows", "look")
    assert (tmp_path / "log").read_text() == "its words"
    assert said[-1] == ["docker", "rm", "--force", "mine-connect"]
    failing: Any = Stack(fails=True)
    with pytest.raises(StopError), sink.worker(failing):
        pytest.fail("a worker that was not started is not used")
    assert said[-1] == ["docker", "rm", "--force", "mine-connect"]


def test_the_image_is_built_first_and_removed_last(said: list[list[str]]) -> None:
    stack: Any = Stack()
    with pytest.raises(StopError), sink.image(stack):
        raise StopError("wrong rows", "look")
    assert said[0] == ["docker", "compose", *sink.FILES, "build", "connect"]
    assert said[-1] == ["docker", "image", "rm", "tarn/connect:mine"]
