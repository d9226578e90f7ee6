"""Files of rows are on their way while their commit is prepared; none is listed before it is there."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from tarn.adapters.files import FileIO
from tarn.core.errors import UnavailableError
from tarn.core.object_store import ObjectStore
from tarn.gateway import uploads
from tarn.gateway.tables import Tables
from tarn.ingest.changes import Done
from tarn.ingest.committer import Committer
from tarn.ingest.group import Member
from tarn_catalog.testing.faulty_store import Fault, FaultyStore, Op
from tests.contract.gateway.test_inbox import NAME, ids, inbox, lake_with_table, settle, write
from tests.support.lake import BUCKET, Lake


class Later(Executor):
    """Runs what it is given when it is asked to: the write of a file that takes its time."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Waited(self.run)
        self.held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self) -> None:
        held, self.held = self.held, []
        for future, work in held:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except UnavailableError as e:
                future.set_exception(e)


class Waited(Future[Any]):
    """A future whose work is done when it is waited for."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run = run

    def result(self, timeout: float | None = None) -> Any:
        self._run()
        return super().result(timeout)


@pytest.fixture
def later() -> Later:
    return Later()


@pytest.fixture
def refused() -> list[str]:
    """Ends of the names of objects that the store does not take."""
    return []


@pytest.fixture
def lake(later: Later, refused: list[str]) -> Lake:
    made = lake_with_table()

    def plan(op: Op) -> Fault | None:
        return Fault.BUSY if op.kind == "put" and refused and op.key.endswith(tuple(refused)) else None

    store: ObjectStore = FaultyStore(made.store, plan)
    made.objects = FileIO(store, bucket=BUCKET, sleep=lambda _s: None, workers=later)
    return made


def parquet(lake: Lake) -> int:
    return sum(one.key.endswith(".parquet") for one in lake.store.list(""))


def test_a_commit_is_prepared_while_its_file_is_on_the_way(lake: Lake, later: Later) -> None:
    box, before = inbox(lake), parquet(lake)
    answer = box.submit(write(1))
    prepared = box.prepare()
    assert prepared is not None
    assert len(later.held) == 1, "the file is begun"
    assert parquet(lake) == before, "and not there"
    box.commit(prepared)
    assert parquet(lake) == before + 1
    assert answer.result(0).accepted == 1
    assert ids(lake) == [1]


def test_a_large_file_is_there_before_its_commit_begins(
    lake: Lake, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "BEGUN_BYTES_MAX", 10)
    box, before = inbox(lake), parquet(lake)
    box.submit(write(1))
    assert box.prepare() is not None
    assert not later.held
    assert parquet(lake) == before + 1


def test_a_file_that_cannot_be_written_ends_its_commit_unsent(lake: Lake, refused: list[str]) -> None:
    box, head = inbox(lake), lake.table().head_id
    refused.append(".parquet")
    answer = box.submit(write(1))
    settle(box)
    with pytest.raises(UnavailableError, match=r"could not write s3://.*\.parquet in 5 attempts"):
        answer.result(0)
    assert lake.table().head_id == head
    refused.clear()
    again = box.submit(write(1))
    settle(box)
    assert again.result(0).accepted == 1
    assert not again.result(0).repeated, "the table knows nothing of the first one"
    assert ids(lake) == [1]


def test_a_file_that_cannot_be_written_ends_its_own_commit_of_those_made_together(
    lake: Lake, refused: list[str]
) -> None:
    members = []
    for number in (1, 2):
        box = inbox(lake)
        box.submit(write(number, producer=f"p{number}"))
        made = box.prepare()
        assert made is not None
        members.append(Member(change=made.change, writer=made.writer))
    refused.append(members[0].change.files[0].path.rpartition("/")[2])
    Committer(lake.catalog, NAME, ports=lake.context().ports).commit_all(members)
    assert isinstance(members[0].result, uploads.NotWrittenError)
    assert isinstance(members[1].result, Done)
    assert not members[0].attempts, "nothing was sent that lists it"
    assert ids(lake) == [2]


@pytest.mark.parametrize("ends", [(".parquet", ".avro"), ("",)])
def test_a_store_that_takes_nothing_ends_a_commit_unsent_and_does_not_hold_it(
    lake: Lake, refused: list[str], ends: tuple[str, ...]
) -> None:
    """The manifest is waited for as long as it takes; the answer about the rows is not."""
    head = lake.table().head_id
    tables = Tables(lake.context(), lake.objects)
    try:
        box = tables.inbox(NAME)
        refused += ends
        with pytest.raises(UnavailableError, match=r"could not write s3://.*\.parquet in 5 attempts"):
            box.submit(write(1)).result(60)
        assert lake.table().head_id == head
        refused.clear()
        assert not box.submit(write(1)).result(60).repeated, "the table knows nothing of the first one"
        assert ids(lake) == [1]
    finally:
        refused.clear()
        tables.close(wait_s=60)


def test_a_file_that_is_there_does_not_end_a_commit_that_waits_for_its_manifest(
    lake: Lake, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused.append(".avro")
    waits: list[str] = []
    tables = Tables(lake.context(), lake.objects)
    try:
        box = tables.inbox(NAME)
        look = box._sending.look

        def counted(reason: str) -> None:
            look(reason)
            waits.append(reason)
            if len(waits) == 3:
                refused.clear()

        monkeypatch.setattr(box._commits, "_on_wait", counted)
        assert box.submit(write(1)).result(60).accepted == 1
        assert len(waits) >= 3
        assert ids(lake) == [1]
    finally:
        refused.clear()
        tables.close(wait_s=60)


def test_a_file_that_no_commit_will_have_is_not_held(lake: Lake, later: Later) -> None:
    box, before = inbox(lake), parquet(lake)
    box.submit(write(1))
    prepared = box.prepare()
    assert prepared is not None
    box.put_back(prepared)
    (first,) = later.held
    assert first[0].cancelled()
    again = box.prepare()
    assert again is not None
    box.commit(again)
    assert parquet(lake) == before + 1
    assert ids(lake) == [1]


def test_a_file_whose_commit_cannot_be_made_is_not_held(
    lake: Lake, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = inbox(lake)

    def away(*_: Any) -> Any:
        raise UnavailableError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(box, "_key_commit", away)
        answers = [box.submit(write(1))]
        assert box.prepare() is None
    answers.append(box.submit(write(1)))
    prepared = box.prepare()
    assert prepared is not None
    monkeypatch.setattr(box._commits, "commit", away)
    box.commit(prepared)
    assert [type(answer.exception(0)) for answer in answers] == [UnavailableError] * 2
    assert [begun.cancelled() for begun, _ in later.held] == [True, True]
