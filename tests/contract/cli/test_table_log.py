"""`tarn log`: the ingestor that brings a table's log in, declared once."""

from __future__ import annotations

import pytest
import yaml

from tarn.cli import wiring
from tarn.cli.main import main
from tarn.cli.table_log import spec_for
from tarn.core.log_claims import topic_of
from tarn.core.spec import spec_of
from tarn.core.table_state import TableState
from tarn.testing.memory_topic import Topic
from tests.support.lake import TABLE, Lake, order


class Ended(BaseException):
    pass


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Lake:
    made = Lake(Topic("orders", 2))
    made.work(made.ingestor(), turns=3)
    specs = made.specs()
    monkeypatch.setattr(wiring, "specs", lambda _settings: specs)
    monkeypatch.setattr(wiring, "table", lambda _settings, name: made.table(str(name)))
    monkeypatch.setattr(wiring, "wake_ingest", lambda _settings: None)
    return made


def run(*words: str) -> int:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    with pytest.raises(Ended):
        main(list(words), end=end)
    return codes[0]


def test_it_declares_an_ingestor_of_the_tables_topic_once(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("log", TABLE, "--partitions", "3") == 0
    uuid = lake.table().uuid
    name = f"log-bronze-orders-{uuid[:8]}"
    assert f"ingestor {name} created: {topic_of(uuid)} -> bronze.orders" in capsys.readouterr().out
    declared = lake.specs().get(name)
    assert declared is not None
    source = declared.spec.spec.source.kafka
    assert (source.names, source.create, source.partitions) == ((topic_of(uuid),), True, 3)
    assert declared.spec.spec.trace
    assert run("log", TABLE, "--partitions", "3") == 0
    assert f"{name} unchanged" in capsys.readouterr().out


def test_what_it_declares_lands_messages_in_the_table(lake: Lake) -> None:
    spec = spec_of(spec_for(lake.table(), TABLE, partitions=1), file="log")
    topic = Topic(topic_of(lake.table().uuid), 1)
    topic.send(0, order(1), order(2))
    lake.sources.topics[topic.name] = topic
    lake.work(lake.ingestor(spec), turns=80)
    assert sorted(row["id"] for row in lake.rows()) == [1, 2]


def test_it_prints_and_declares_nothing(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("log", TABLE, "--print") == 0
    assert yaml.safe_load(capsys.readouterr().out) == spec_for(lake.table(), TABLE, partitions=1)
    assert lake.specs().list() == {}


def test_a_table_without_the_trace_column_gets_none(lake: Lake) -> None:
    state = lake.table()
    schema = {**state.metadata["schemas"][-1]}
    schema["fields"] = [column for column in schema["fields"] if column["name"] != "_tarn"]
    plain = TableState({**state.metadata, "schemas": [schema], "current-schema-id": schema["schema-id"]})
    assert spec_for(plain, TABLE, partitions=1)["spec"]["trace"] is False


def test_any_table_gets_a_name_that_an_ingestor_may_have(lake: Lake) -> None:
    for table in ("a.b", "Shop.Uber_Carts", f"{'n' * 90}.{'t' * 90}", "x.__"):
        assert spec_of(spec_for(lake.table(), table, partitions=1), file=table).name.startswith("log-")


def test_a_name_without_a_namespace_is_refused(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("orders", "a..b", ".a"):
        assert run("log", wrong) == 2
        assert "name it as namespace.name" in capsys.readouterr().err
