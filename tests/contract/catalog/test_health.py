"""The deep check makes a real commit, is invisible to users and keeps two objects, however often it runs."""

from __future__ import annotations

import threading

import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import ConflictError
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Fault, FaultyStore

ROOTS = WarehouseLayout(base="s3://tarn")


def replica(store: FaultyStore) -> Catalog:
    return Catalog(store, ROOTS, patience=RetryPolicy(attempts_max=2, sleep=lambda _: None))


def test_deep_is_a_commit_that_leaves_two_objects_and_no_name() -> None:
    store = FaultyStore(MemoryStore())
    catalog = replica(store)
    seen = set()
    for _ in range(20):
        assert catalog.health.deep() is None
        held = {listed.key: listed.etag for listed in store.inner.list("")}
        assert len(held) == 2, held
        assert all(key.startswith("catalog/v1/probe/") for key in held)
        seen.add(held["catalog/v1/probe/health.json"])
    assert len(seen) == 20, "each is a commit"
    assert list(catalog.namespaces.children().names) == []
    assert len(store.inner.get("catalog/v1/probe/health.json").data) < 8_000


def test_replicas_do_not_call_each_other_ill() -> None:
    store = FaultyStore(MemoryStore())
    replicas = [replica(store) for _ in range(4)]
    assert replicas[0].health.deep() is None
    problems: list[str | None] = []

    def probe(catalog: Catalog) -> None:
        problems.extend(catalog.health.deep() for _ in range(15))

    threads = [threading.Thread(target=probe, args=(catalog,)) for catalog in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [problem for problem in problems if problem] == []
    assert len(problems) == 60


def test_a_deep_check_that_another_replica_outran_pauses_before_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits_s: list[float] = []
    catalog = Catalog(MemoryStore(), ROOTS, patience=RetryPolicy(sleep=waits_s.append))
    assert catalog.health.deep() is None

    def outrun(*_: object, **__: object) -> None:
        raise ConflictError("others were first")

    monkeypatch.setattr(catalog.tables, "commit", outrun)
    assert catalog.health.deep() == "others were first"
    assert len(waits_s) == 2


def test_what_the_store_refuses_is_told() -> None:
    store = FaultyStore(MemoryStore())
    catalog = replica(store)
    assert catalog.health.deep() is None
    assert catalog.health.shallow() is None
    for fault, text in ((Fault.DENIED, "may not"), (Fault.RESET, "could not")):
        store.plan = lambda _, fault=fault: fault
        assert text in replica(store).health.shallow()
        assert text in replica(store).health.deep()
    store.plan = lambda op: Fault.RESET if op.kind == "put" else None
    assert replica(store).health.shallow() is None
    assert replica(store).health.deep() is not None
    store.plan = lambda _: None
    assert catalog.health.deep() is None
