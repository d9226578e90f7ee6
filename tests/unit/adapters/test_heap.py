"""A full collection of a service that runs walks only through what was made since its start."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tarn.adapters.heap import freeze_heap
from tarn.gateway import server
from tarn.ingest import service
from tarn.ingest.service import Loaded
from tarn.ingest.settings import Settings


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Leave nothing frozen to other tests."""
    gc.unfreeze()
    yield
    gc.unfreeze()


class Node:
    """An object that only a collection frees, because it refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.long
def test_what_lives_at_the_start_is_not_walked_through_again() -> None:
    before = len(gc.get_objects())
    freeze_heap()
    assert len(gc.get_objects()) < before / 100
    assert gc.get_freeze_count() > before / 2


@pytest.mark.long
def test_garbage_of_the_start_is_freed_first_and_later_garbage_still_is() -> None:
    old = weakref.ref(Node())
    freeze_heap()
    assert old() is None
    new = weakref.ref(Node())
    assert new() is not None
    gc.collect()
    assert new() is None


@pytest.mark.long
def test_ingest_freezes_its_heap_before_it_takes_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: dict[str, int] = {}

    class Assembled:
        """Whatever ingest assembles; its start ends the test."""

        port = 0
        controller = SimpleNamespace(wake=None)

        def __init__(self, *_: Any, **__: Any) -> None:
            frozen["assembled"] = gc.get_freeze_count()

        def start(self) -> None:
            frozen["started"] = gc.get_freeze_count()
            raise InterruptedError

    for name in ("Service", "StatusServer", "DependencyMonitor"):
        monkeypatch.setattr(service, name, Assembled)
    for name in (
        "make_world",
        "make_store",
        "make_specs",
        "make_driver",
        "make_lake_look",
        "make_table_look",
        "make_fsck_look",
        "make_strikes",
    ):
        monkeypatch.setattr(service, name, lambda *_, **__: SimpleNamespace(seen=None))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(InterruptedError):
        service.serve(Settings(secrets_dir=tmp_path), Loaded(specs={}, errors={}))
    assert frozen["assembled"] == 0
    assert frozen["started"] > 10_000


@pytest.mark.long
def test_the_gateway_freezes_its_heap_before_it_takes_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []

    def loop(main: Any) -> None:
        main.close()
        frozen.append(gc.get_freeze_count())

    assembled = SimpleNamespace(start=lambda: frozen.append(gc.get_freeze_count()))
    for name in ("Tables", "make_logs", "make_health", "make_app", "gateway_socket", "gateway_listener"):
        monkeypatch.setattr(server, name, lambda *_, **__: assembled)
    monkeypatch.setattr(server, "make_context", lambda *_: (None, None))
    monkeypatch.setattr(server, "on_a_loop", loop)
    server.run(SimpleNamespace(gateway_listen="127.0.0.1", gateway_port=1))  # type: ignore[arg-type]
    assert frozen[0] == 0, "health, which starts before"
    assert frozen[1] > 10_000
