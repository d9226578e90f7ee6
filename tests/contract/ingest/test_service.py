"""The service around the ingestors: bad specs, waiting for dependencies, draining, ids."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from tarn.core.errors import InvalidSettingError, UnavailableError
from tarn.ingest import effects
from tarn.ingest.service import Loaded, Service, load_specs, main
from tarn.ingest.settings import Settings
from tarn.ingest.status import State, StatusRegistry
from tarn.ingest.wiring import make_specs, new_snapshot_id, stoppable_sleep, uuid7
from tarn.testing.memory_topic import Topic
from tests.support.lake import SPEC, Lake, ends, order

GOOD = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")


def loaded(tmp_path: Any, **files: str) -> Loaded:
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return load_specs(tmp_path)


def test_a_bad_spec_is_told_and_the_others_run(tmp_path: Any, logged: list[Any]) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    stop = threading.Event()
    registry = StatusRegistry()

    def halt() -> None:
        if registry.get("orders").rows:
            lake.stop = True

    lake.sources.on_poll = halt
    service = Service(
        loaded(tmp_path, good=GOOD, bad=GOOD.replace("kind", "knd")),
        lake.context(registry=registry),
        registry,
        stop,
        specs=lake.specs(),
    )
    service.start()
    assert ends(service, lake)
    assert registry.get("bad.yaml").state is State.INVALID
    assert "knd: unknown field (did you mean kind?)" in registry.get("bad.yaml").message
    assert registry.get("orders").rows == 1
    errors = [line for line in logged if line["log_level"] == "error"]
    assert [(e["event"], e["file"]) for e in errors] == [("spec refused", "bad.yaml")]
    logged.clear()


OTHER = GOOD.replace("{name: orders}", "{name: other}").replace("topic: orders", "topic: others")


@pytest.mark.parametrize("good", ["a", "z"], ids=["sorts first", "sorts last"])
def test_a_new_spec_for_the_table_never_stops_the_one_that_works(
    good: str, tmp_path: Any, logged: list[Any]
) -> None:
    topic, others = Topic("orders", 1), Topic("others", 1)
    topic.send(0, order(1))
    others.send(0, order(7))
    lake = Lake(topic, others)
    lake.work(lake.ingestor(), turns=10)
    topic.send(0, order(2))
    registry = StatusRegistry()

    def halt() -> None:
        lake.stop = lake.stop or registry.get("orders").rows == 1

    lake.sources.on_poll = halt
    service = Service(
        loaded(tmp_path, **{good: GOOD, "m": OTHER}),
        lake.context(registry=registry),
        registry,
        threading.Event(),
        specs=lake.specs(),
    )
    service.start()
    assert ends(service, lake)
    assert lake.offsets() == [(0, 0), (0, 1)]
    assert set(registry.ingestors()) == {"orders", "m.yaml"}
    assert registry.get("m.yaml").state is State.INVALID
    assert f"{good}.yaml goes on" in registry.get("m.yaml").message
    assert [line["file"] for line in logged if line["log_level"] == "error"] == ["m.yaml"]
    logged.clear()


def test_of_two_new_specs_for_one_table_none_begins_and_both_are_named(
    tmp_path: Any, logged: list[Any]
) -> None:
    lake = Lake(Topic("orders", 1), Topic("others", 1))
    registry = StatusRegistry()
    files = loaded(tmp_path, a=GOOD, b=OTHER)
    service = Service(files, lake.context(registry=registry), registry, threading.Event(), specs=lake.specs())
    service.start()
    late_s = time.monotonic() + 60
    while {registry.get(file).state for file in ("a.yaml", "b.yaml")} != {State.INVALID}:
        assert time.monotonic() < late_s, registry.ingestors()
        time.sleep(0.01)
    assert service.drain()
    for file, other in (("a.yaml", "b.yaml"), ("b.yaml", "a.yaml")):
        assert registry.get(file).state is State.INVALID
        assert (
            f"neither has begun, so neither begins; change or remove one. The other: {other}"
            in registry.get(file).message
        )
    assert lake.store.list("warehouse/") is not None
    assert [*lake.store.list("warehouse/")] == []
    logged.clear()


def test_a_copy_of_a_spec_is_refused_and_the_ingestor_works(tmp_path: Any, logged: list[Any]) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    registry = StatusRegistry()

    def halt() -> None:
        lake.stop = lake.stop or registry.get("orders").rows == 1

    lake.sources.on_poll = halt
    service = Service(
        loaded(tmp_path, a=GOOD, b=GOOD),
        lake.context(registry=registry),
        registry,
        threading.Event(),
        specs=lake.specs(),
    )
    service.start()
    assert ends(service, lake)
    assert lake.offsets() == [(0, 0)]
    assert registry.get("b.yaml").state is State.INVALID
    logged.clear()


def test_who_is_right_is_asked_until_the_catalog_answers(tmp_path: Any, logged: list[Any]) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic, Topic("others", 1))
    lake.work(lake.ingestor(), turns=10)
    topic.send(0, order(2))
    registry = StatusRegistry()
    load, away = lake.local.load, [3]

    def away_at_first(table: Any) -> Any:
        if away[0]:
            away[0] -= 1
            raise UnavailableError("the catalog is away")
        return load(table)

    lake.local.load = away_at_first  # type: ignore[method-assign]

    def halt() -> None:
        lake.stop = lake.stop or registry.get("orders").rows == 1

    lake.sources.on_poll = halt
    service = Service(
        loaded(tmp_path, a=OTHER, b=GOOD),
        lake.context(registry=registry),
        registry,
        threading.Event(),
        specs=lake.specs(),
    )
    service.start()
    assert ends(service, lake)
    assert lake.offsets() == [(0, 0), (0, 1)]
    logged.clear()


def test_a_dependency_that_is_away_at_the_start_is_waited_for() -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    away = [5]
    open_topic = lake.sources.open

    def open_late(name: str, *, stream: str) -> Any:
        if away[0]:
            away[0] -= 1
            assert lake.registry.get("orders").state in (State.STARTING, State.WAITING)
            raise UnavailableError("no broker answers")
        return open_topic(name, stream=stream)

    lake.sources.open = open_late  # type: ignore[method-assign]

    def halt() -> None:
        lake.stop = bool(lake.registry.get("orders").rows)

    lake.sources.on_poll = halt
    lake.ingestor().run()
    assert away == [0]
    assert len(lake.rows()) == 1


def test_a_defect_in_one_ingestor_is_told_and_does_not_end_it(logged: list[Any]) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    broken = [2]
    open_topic = lake.sources.open

    def open_broken(name: str, *, stream: str) -> Any:
        if broken[0]:
            broken[0] -= 1
            raise ZeroDivisionError("oh")
        return open_topic(name, stream=stream)

    lake.sources.open = open_broken  # type: ignore[method-assign]

    def halt() -> None:
        lake.stop = bool(lake.registry.get("orders").rows)

    lake.sources.on_poll = halt
    lake.ingestor().run()
    assert len(lake.rows()) == 1
    assert [line["event"] for line in logged if line["log_level"] == "error"] == ["ingestor failed"] * 2
    logged.clear()


def test_sleep_ends_at_once_when_the_process_stops() -> None:
    stop = threading.Event()
    sleep = stoppable_sleep(stop)
    sleep(0.0)
    threading.Timer(0.05, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Exception, match=r"^$") as caught:
        sleep(30)
    assert type(caught.value).__name__ == "StoppedError"
    assert time.monotonic() - start < 25


def test_keys_are_uuids_of_version_7_in_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = itertools.count(time.time_ns(), 2_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(effects, "time", SimpleNamespace(time_ns=lambda: next(now_ns)))
        keys = [uuid.UUID(uuid7()) for _ in range(3)]
    assert {k.version for k in keys} == {7}
    assert {k.variant for k in keys} == {uuid.RFC_4122}
    assert keys == sorted(keys)
    assert abs((keys[0].int >> 80) - time.time_ns() // 1_000_000) < 10_000


def test_snapshot_ids_are_positive_and_fit_63_bits() -> None:
    found = {new_snapshot_id() for _ in range(100)}
    assert len(found) == 100
    assert all(0 < n < 2**63 for n in found)


def test_check_ends_with_2_for_a_bad_spec_and_0_for_good_ones(tmp_path: Any, capsys: Any) -> None:
    loaded(tmp_path, good=GOOD)
    assert main(["--check", "--specs", str(tmp_path)]) == 0
    assert "good.yaml: ok: orders -> bronze.orders" in capsys.readouterr().out
    loaded(tmp_path, bad="kind: [")
    assert main(["--check", "--specs", str(tmp_path)]) == 2
    assert "bad.yaml, line 1, column 8: unreadable YAML" in capsys.readouterr().err
    (tmp_path / "bad.yaml").unlink()
    loaded(tmp_path, also=OTHER)
    assert main(["--check", "--specs", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "also.yaml: spec.table 'bronze.orders' is written by two" in told
    assert "good.yaml: spec.table 'bronze.orders' is written by two" in told
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["--check", "--specs", str(empty)]) == 2
    assert "holds no spec" in capsys.readouterr().err
    assert main(["--check", "--specs", str(tmp_path / "none")]) == 2


def test_settings_that_cannot_be_used_name_the_variable(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("TARN_INGEST_PORT", "many")
    assert main(["--check"]) == 2
    assert "TARN_INGEST_PORT is 'many', allowed: a whole number from 0 to 65535" in capsys.readouterr().err


def test_a_missing_secret_names_its_file(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    loaded(tmp_path, good=GOOD)
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path / "none"))
    settings = Settings.read()
    with pytest.raises(Exception, match="s3_access_key_id cannot be read"):
        settings.secret("s3_access_key_id")


def test_a_service_of_the_folder_alone_stores_nothing(tmp_path: Any) -> None:
    """It asks for no key of the store."""
    specs = make_specs(Settings(ingest_specs="folder", secrets_dir=tmp_path / "none"))
    files = loaded(tmp_path, good=GOOD).files
    assert files.apply(specs, specs.list())
    assert set(specs.list()) == {"orders"}
    assert make_specs(Settings(ingest_specs="folder")).list() == {}
    with pytest.raises(InvalidSettingError, match="s3_access_key_id cannot be read"):
        make_specs(Settings(secrets_dir=tmp_path / "none"))
