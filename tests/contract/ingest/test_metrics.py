"""What the metrics say of commits that succeed, meet another writer, or get no answer."""

from __future__ import annotations

import re

import orjson

from tarn.adapters.manifests import read_list
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn.ingest.metrics import to_metrics
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake, LocalCatalog, order


class Refusing(LocalCatalog):
    """Answers the first requests of the table of orders with these outcomes; the others reach the table."""

    def __init__(self, lake: Lake, *outcomes: Conflict | Unknown) -> None:
        self.__dict__ = lake.local.__dict__
        self.outcomes = list(outcomes)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if table.name == "orders" and self.outcomes:
            return self.outcomes.pop(0)
        return super().commit(table, request, key=key)


def metrics(lake: Lake) -> dict[str, float]:
    found = re.findall(
        r'^tarn_ingest_(\w+)\{[^}]*?(?:,le="([^"]+)")?\} (\S+)$', to_metrics(lake.registry), re.M
    )
    return {f"{name}{{{bound}}}" if bound else name: float(value) for name, bound, value in found}


def test_conflicts_and_unknown_outcomes_are_counted_each_on_its_own() -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1), b"junk", order(2))
    lake = Lake(topic)
    lake.catalog = Refusing(lake, Conflict(reason="409"), Unknown(reason="504"), Conflict(reason="409"))
    lake.work(lake.ingestor(), turns=40)
    found = metrics(lake)
    assert found["conflicts_total"] == 2
    assert (found["unknown_outcomes_total"], found["unknown_outcomes_resolved_total"]) == (1, 1)
    assert (found["retries_total"], found["commits_total"]) == (3, 1)
    assert (found["rows_total"], found["bad_records_total"], found["commits_total"]) == (2, 1, 1)


def test_what_is_measured_of_the_table_is_what_it_holds() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor()
    for number in range(3):
        topic.send(0, order(number))
        lake.work(ingestor, turns=40)
    found, files = metrics(lake), lake.files()
    assert found["commits_total"] == found["table_data_files"] == len(files) == 3
    size = sum(entry.data_file.file_size_in_bytes for entry in files)
    assert found["table_bytes"] == found["bytes_total"] == size
    assert found["table_snapshots"] == len(lake.table().metadata["snapshots"])
    assert found["merges_total"] == 0
    manifests = read_list(lake.objects.read(lake.table().head["manifest-list"]))
    assert found["table_manifests"] == len(manifests) == 3
    listed = len(lake.objects.read(lake.table().head["manifest-list"]))
    sizes = [len(lake.objects.read(manifest.manifest_path)) for manifest in manifests]
    assert found["table_metadata_bytes"] == listed + sum(sizes) + len(orjson.dumps(lake.table().metadata))
    assert (found["commits_total"], found["retries_total"], found["unknown_outcomes_resolved_total"]) == (
        3,
        0,
        0,
    )


def test_an_unknown_outcome_is_unresolved_until_the_table_could_be_asked() -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    refusing = Refusing(lake, Unknown(reason="504"))
    lake.catalog = refusing
    load, seen = refusing.load, []

    def look(table: TableName) -> TableState:
        if metrics(lake).get("unknown_outcomes_total"):
            seen.append(metrics(lake)["unknown_outcomes_resolved_total"])
        return load(table)

    refusing.load = look  # type: ignore[method-assign]
    lake.work(lake.ingestor(), turns=40)
    assert seen[0] == 0
    assert metrics(lake)["unknown_outcomes_resolved_total"] == 1


def test_freshness_counts_each_batch_once_with_its_oldest_record() -> None:
    topic = Topic("orders", 2)
    lake = Lake(topic)
    now_ms = int(lake.clock.now_s * 1_000) + 1_700_000_000_000
    topic.times_ms = {0: now_ms - 2_000, 1: now_ms - 5_000}
    topic.send(0, order(1), order(2))
    topic.send(1, order(3))
    lake.work(lake.ingestor(), turns=40)
    found = metrics(lake)
    assert found["freshness_seconds_count"] == found["commits_total"] == 1
    assert 5.0 <= found["freshness_seconds_sum"] < 10.0
    assert found["freshness_seconds_bucket{5.0}"] == 0
    assert found["freshness_seconds_bucket{10.0}"] == found["freshness_seconds_bucket{+Inf}"] == 1


def test_records_without_a_time_have_no_freshness() -> None:
    topic = Topic("orders", 1)
    topic.times_ms = {0: -1}
    lake = Lake(topic)
    topic.send(0, order(1))
    lake.work(lake.ingestor(), turns=40)
    found = metrics(lake)
    assert found["commits_total"] == 1
    assert found["freshness_seconds_count"] == 0
