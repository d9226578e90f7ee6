"""`tarn apply`, `get`, `describe`, `delete` and `scale`, over a controller with real readers."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tarn.cli import ingestors, wiring
from tarn.cli.main import main
from tarn.cli.replay import Replayed
from tarn.controller import declaring
from tarn.controller.files import SpecFile, SpecFiles
from tarn.core.control.declared import spec_key
from tarn.core.errors import UnavailableError
from tarn.core.object_store import StoreOutcomeUnknownError
from tarn.core.spec import spec_of
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake, order
from tests.support.plant import Plant, document


class Ended(BaseException):
    pass


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    topics = [Topic(name, 2, topic_id=f"id-{name}") for name in ("orders", "sales")]
    for topic in topics:
        topic.send(0, order(1), order(2), b"junk")
    made = Plant(Lake(*topics))
    monkeypatch.setattr(wiring, "specs", lambda _settings: made.specs)
    monkeypatch.setattr(wiring, "wake_ingest", lambda _settings: made.controller.step())
    clock = SimpleNamespace(sleep=lambda _s: made.controller.step(), monotonic=time.monotonic)
    monkeypatch.setattr(ingestors, "time", clock)
    yield made
    made.close()


def run(monkeypatch: pytest.MonkeyPatch, *words: str, stdin: str = "") -> int:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
    with pytest.raises(Ended):
        main(list(words), end=end)
    return codes[0]


def text(name: str = "orders", **body: Any) -> str:
    return yaml.safe_dump(document(name, **body))


def test_from_a_file_to_a_running_ingestor_and_away(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(text())
    assert run(monkeypatch, "apply", "-f", str(file), "--wait", "60") == 0
    said = capsys.readouterr().out
    assert "ingestor orders created, generation 1: orders -> bronze.orders" in said
    assert "Running" in said
    plant.until(lambda: plant.lake.registry.get("orders").bad_records == 1)
    assert run(monkeypatch, "apply", "-f", str(file)) == 0
    assert "orders unchanged, generation 1" in capsys.readouterr().out
    code, said = run(monkeypatch, "scale", "orders", "2", "--wait", "60"), capsys.readouterr()
    assert code == 0, said
    assert "replicas: 2, generation 2" in said.out
    assert run(monkeypatch, "get") == 0
    out = capsys.readouterr().out
    assert re.search(r"orders +│ Running +│ +2/2 │ +2 │", out), out
    assert "by hand" in out
    assert run(monkeypatch, "get", "orders", "--yaml") == 0
    assert spec_of(yaml.safe_load(capsys.readouterr().out), file="x").spec.replicas == 2
    assert run(monkeypatch, "get", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["metadata"]["generation"], found["status"]["readyReplicas"]) == (2, 2)
    assert run(monkeypatch, "describe", "orders") == 0
    out = capsys.readouterr().out
    assert "Ready: True, Running since" in out
    assert "2 of 2 readers run" in out
    assert "writer orders/orders/0@" in out
    assert "namespace: bronze" in out
    assert run(monkeypatch, "delete", "orders", "--wait", "60") == 0
    assert "Its table stays" in capsys.readouterr().out
    assert plant.workers() == []
    assert run(monkeypatch, "get") == 0
    assert "no ingestor is declared" in capsys.readouterr().out
    for command in (("describe", "orders"), ("delete", "orders"), ("scale", "orders", "1")):
        assert run(monkeypatch, *command) == 1
        assert "there is no ingestor orders" in capsys.readouterr().err


def test_what_ran_once_is_no_failure_though_its_state_changes_at_once(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(text())
    look = ingestors.one
    answers: list[bool] = []

    def changing(specs: Any, name: str) -> Any:
        found = look(specs, name)
        if True in answers:
            found = replace(found, status=None)
        answers.append(bool(found.ready["status"]))
        return found

    monkeypatch.setattr(ingestors, "one", changing)
    assert run(monkeypatch, "apply", "-f", str(file), "--wait", "60") == 0
    assert answers[-1] is True
    assert capsys.readouterr().out.splitlines()[-1] == "Running"


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"replicas": "three"}, ("spec.replicas", "'three'")),
        ({"replicas": 0}, ("spec.replicas", "0", "greater than or equal to 1")),
        ({"batchin": {}}, ("spec.batchin", "did you mean batching?")),
        ({"workerTemplate": {"resources": {"memory": "64Mi"}}}, ("spec.workerTemplate.resources", "256Mi")),
        ({"workerTemplate": {"resources": {"memory": "1G"}}}, ("workerTemplate.resources.memory", "'1G'")),
        ({"workerTemplate": {"resources": {"cpu": 1}}}, ("cpu: unknown field", "memory, threads")),
        (
            {
                "workerTemplate": {"resources": {"threads": 1}},
                "eventTime": {"column": "at"},
                "replicas": 2,
            },
            ("workerTemplate.resources", "2 replicas", "set replicas: 1"),
        ),
    ],
)
def test_an_invalid_spec_names_the_field_and_the_value(
    change: dict[str, Any], names: tuple[str, ...], plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert run(monkeypatch, "apply", "-f", "-", "--shown-as", "orders.yaml", stdin=text(**change)) == 2
    said = capsys.readouterr().err
    for name in ("orders.yaml", *names):
        assert name in said, said
    assert plant.specs.list() == {}


@pytest.mark.parametrize(
    "words", [["apply", "-f", "-"], ["check-spec", "-"], ["dead-letters", "replay", "-"]]
)
def test_a_file_that_is_not_utf_8_is_wrong_input(
    words: list[str], plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Without a locale, as in the container, Python reads such bytes as halves of surrogate pairs."""
    read = text().encode().replace(b"orders", b"\xfcbersee").decode("utf-8", "surrogateescape")
    assert run(monkeypatch, *words, "--shown-as", "orders.yaml", stdin=read) == 2
    assert "could not read orders.yaml: not UTF-8" in capsys.readouterr().err
    assert plant.specs.list() == {}


def test_two_specs_for_one_table_and_topic_and_a_renamed_one(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    plant.apply()
    renamed = {**document(), "metadata": {"name": "purchases"}}
    assert run(monkeypatch, "apply", "-f", "-", stdin=yaml.safe_dump(renamed)) == 2
    said = capsys.readouterr().err
    for part in ("'purchases'", "'bronze.orders'", "metadata.stream: orders", "scripts/tarn delete orders"):
        assert part in said, said
    built_in = document(table={"namespace": "ops", "name": "audit"})
    assert run(monkeypatch, "apply", "-f", "-", stdin=yaml.safe_dump(built_in)) == 2
    assert "spec.table is 'ops.audit', which built-in audit" in capsys.readouterr().err
    assert set(plant.specs.list()) == {"orders"}
    for table in ("orders", "audit"):
        named = {**document(table={"namespace": "bronze", "name": table}), "metadata": {"name": "tarn-audit"}}
        assert run(monkeypatch, "apply", "-f", "-", stdin=yaml.safe_dump(named)) == 2
        assert "'tarn-audit', the name of Tarn's own ingestor (built-in audit)" in capsys.readouterr().err
    assert set(plant.specs.list()) == {"orders"}


@pytest.mark.parametrize("again", [False, True], ids=["gone", "declared again"])
def test_a_deletion_whose_answer_is_lost_deletes_nothing_twice(
    again: bool, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    plant.apply()
    put, lost = plant.lake.store.put, [True]

    def answer_lost(key: str, data: bytes, **options: Any) -> Any:
        done = put(key, data, **options)
        if key == spec_key("orders") and lost and lost.pop():
            plant.controller.step()
            if again:
                plant.apply()
            raise StoreOutcomeUnknownError("no answer")
        return done

    monkeypatch.setattr(plant.lake.store, "put", answer_lost)
    assert run(monkeypatch, "delete", "orders") == 0
    assert "is being deleted" in capsys.readouterr().out
    found = plant.specs.get("orders")
    assert found is not None
    assert (found.gone, found.deleting) == (not again, not again)


def test_a_document_of_another_form_is_shown(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """As another release, or a hand, may have written it."""
    made = plant.apply()
    plant.lake.store.put(spec_key("orders"), replace(made, document={"kind": "Other"}).to_bytes())
    assert run(monkeypatch, "get", "--json") == 0
    assert '"name": "orders"' in capsys.readouterr().out
    assert run(monkeypatch, "scale", "orders", "2") == 2
    assert "ingestor orders: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../status/orders", "x/../orders", "Orders", ""])
def test_a_name_is_never_the_path_of_another_object(
    name: str, plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Stores and their clients resolve `..` in a key, some of them."""
    asked: list[str] = []
    monkeypatch.setattr(plant.lake.store, "get", asked.append)
    for words in (["get"], ["describe"], ["delete"], ["scale", "2"]):
        assert run(monkeypatch, words[0], name, *words[1:]) == 1
        assert "there is no ingestor" in capsys.readouterr().err
    assert not asked


def test_a_rename_as_the_message_says(plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1) and plant.lake.registry.get("orders").rows == 2)
    assert run(monkeypatch, "delete", "orders", "--wait", "60") == 0
    renamed = {**document(), "metadata": {"name": "purchases", "stream": "orders"}}
    assert run(monkeypatch, "apply", "-f", "-", "--wait", "60", stdin=yaml.safe_dump(renamed)) == 0
    plant.lake.sources.topics["orders"].send(1, order(3))
    plant.until(lambda: plant.lake.registry.get("purchases").rows == 1)
    assert plant.lake.offsets() == [(0, 0), (0, 1), (1, 0)]
    capsys.readouterr()


def test_what_a_file_owns(plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    files = SpecFiles(
        files={"orders.yaml": SpecFile(spec=spec_of(document(), file="x"), document=document())}
    )
    plant.controller = plant.new_controller(files=files)
    plant.until(lambda: plant.running(1))
    for words in (("apply", "-f", "-"), ("scale", "orders", "2")):
        assert run(monkeypatch, *words, stdin=text(replicas=2)) == 1
        assert "belongs to orders.yaml of the spec folder" in capsys.readouterr().err
    assert run(monkeypatch, "delete", "orders") == 0
    assert "Its file orders.yaml is still in the spec folder" in capsys.readouterr().out
    plant.until(lambda: declaring.gone(plant.specs, "orders"))
    again = SpecFiles(files=files.files)
    plant.controller = plant.new_controller(files=again)
    plant.until(lambda: plant.running(1))
    assert run(monkeypatch, "scale", "orders", "2", "--take-over") == 0
    plant.controller = plant.new_controller(files=(kept := SpecFiles(files=files.files)))
    plant.until(lambda: plant.running(2))
    assert "was applied by hand, which a file does not change" in kept.refused["orders.yaml"].message


def test_a_status_that_is_not_there_yet_says_so(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def away(_settings: object) -> None:
        raise UnavailableError("no answer")

    monkeypatch.setattr(wiring, "wake_ingest", away)
    assert run(monkeypatch, "apply", "-f", "-", stdin=text()) == 0
    assert "ingest does not answer, and takes this over when it runs" in capsys.readouterr().out
    assert run(monkeypatch, "describe", "orders") == 0
    assert "Ready: False, NotSeen" in capsys.readouterr().out
    assert run(monkeypatch, "get") == 0
    assert "NotSeen" in capsys.readouterr().out


def test_the_status_of_a_deleted_namesake_is_not_shown(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1))
    assert run(monkeypatch, "delete", "orders", "--wait", "60") == 0
    plant.apply()
    assert run(monkeypatch, "describe", "orders") == 0
    assert "ingest has seen nothing of it" in capsys.readouterr().out


def test_an_ingestor_that_cannot_run_is_the_exit_code(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The topic does not exist and is not to be created."""
    missing = text(source={"kafka": {"topic": "nothing"}})
    assert run(monkeypatch, "apply", "-f", "-", "--wait", "60", stdin=missing) == 1
    assert "NoSuchTopic: topic nothing does not exist" in capsys.readouterr().out


def test_a_pattern_is_waited_for_until_it_was_compared_with_the_topics(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Kafka is asked by a thread, so the first status may say that no topic is known yet."""
    around, answers = plant.controller._around, [None, None, ("orders",)]
    plant.controller._around = replace(around, topics=lambda _spec: answers[0])
    seen: list[str] = []
    look = ingestors.one

    def looked(specs: Any, name: str) -> Any:
        found = look(specs, name)
        seen.append(found.ready["reason"])
        if len(answers) > 1:
            answers.pop(0)
        return found

    monkeypatch.setattr(ingestors, "one", looked)
    pattern = text(source={"kafka": {"topicPattern": "ord.*"}})
    assert run(monkeypatch, "apply", "-f", "-", "--wait", "60", stdin=pattern) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Running"
    assert seen[0] == "NoTopic"


def test_an_unreadable_object(plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    plant.lake.store.put(spec_key("orders"), b"{")
    for more in ((), ("--json",)):
        assert run(monkeypatch, "get", *more) == 0
        assert "specs/v1/ingestors/orders.json is not the spec of an ingestor" in capsys.readouterr().err
    assert run(monkeypatch, "describe", "orders") == 5
    assert "specs/v1/ingestors/orders.json is not the spec of an ingestor" in capsys.readouterr().err
    assert run(monkeypatch, "apply", "-f", "-", stdin=text()) == 5
    assert "--replace" in capsys.readouterr().err
    assert run(monkeypatch, "apply", "-f", "-", "--replace", stdin=text()) == 0
    capsys.readouterr()


def test_dead_letters_are_replayed_by_the_spec_of_a_declared_ingestor(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(monkeypatch, "apply", "-f", "-", stdin=text(batching={"maxRecords": 7}))
    replayed: list[Any] = []

    @contextmanager
    def ports(_settings: object, _tell: object) -> Iterator[Any]:
        yield SimpleNamespace(lake=None)

    def replay(spec: Any, _ports: object, *, dry_run: bool) -> Replayed:
        replayed.append((spec.name, spec.spec.batching.max_records, dry_run))
        return Replayed(table="bronze.orders", stream="orders")

    monkeypatch.setattr(wiring, "replay_ports", ports)
    monkeypatch.setattr("tarn.cli.replay.replay", replay)
    assert run(monkeypatch, "dead-letters", "replay", "--ingestor", "orders", "--dry-run") == 0
    file = tmp_path / "orders.yaml"
    file.write_text(text(batching={"maxRecords": 8}))
    assert run(monkeypatch, "dead-letters", "replay", str(file)) == 0
    assert replayed == [("orders", 7, True), ("orders", 8, False)]
    capsys.readouterr()
    for words in ([], [str(file), "--ingestor", "orders"]):
        assert run(monkeypatch, "dead-letters", "replay", *words) == 2
        assert "or --ingestor NAME" in capsys.readouterr().err
    assert run(monkeypatch, "dead-letters", "replay", "--ingestor", "nobody") == 1
    assert "there is no ingestor nobody" in capsys.readouterr().err
    run(monkeypatch, "delete", "orders")
    plant.until(lambda: bool((found := plant.specs.get("orders")) and found.gone))
    assert run(monkeypatch, "dead-letters", "replay", "--ingestor", "orders") == 1
    assert len(replayed) == 2
