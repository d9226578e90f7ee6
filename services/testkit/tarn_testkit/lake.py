"""The lake as a test sees it: produce rows, declare ingestors, wait for rows, read them, break things."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pyiceberg.exceptions import (
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
)

from tarn.controller import declaring
from tarn.core.errors import NotFoundError, TarnError
from tarn.core.offsets import TRACE_COLUMN
from tarn.core.spec import IngestorSpec, parse_document, spec_of
from tarn.core.table_state import TableState
from tarn.ingest.batch_commit import offsets_in, streams_named
from tarn_testkit.backend import Backend, Offsets
from tarn_testkit.errors import IngestorError, WaitError
from tarn_testkit.faults import Faults
from tarn_testkit.isolation import moved_into, slug, topic_name
from tarn_testkit.messages import Key, Row, messages_of
from tarn_testkit.waiting import PAUSE_S, eventually

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

T = TypeVar("T")
Spec = Mapping[str, Any] | str | Path

READY_S = 60.0
WAIT_S = 60.0
ENDED_S = 60.0
HOPELESS = frozenset({"InvalidSpec", "Unreadable", "Clash", "Forbidden", "Unauthenticated", "CrashLoop"})
"""Reasons of an ingestor that is not ready which do not pass by themselves."""


@dataclass(slots=True)
class Trino:
    """Trino of the lake.

    Args:
        backend: the lake's parts.
    """

    backend: Backend

    def query(self, sql: str) -> list[list[Any]]:
        """The rows of a statement; tables are `tarn.<namespace>.<table>`, or `<namespace>.<table>`.

        Raises:
            NeedsStackError, NotInProfileError: there is no Trino; says what to do.
            trino.exceptions.Error: Trino's own.
        """
        return self.backend.query(sql)

    def cursor(self) -> Any:
        """A cursor of Trino's own client (DB-API 2.0).

        Raises:
            NeedsStackError, NotInProfileError: there is no Trino; says what to do.
        """
        return self.backend.cursor()


class Ingested:
    """A declared ingestor.

    Attributes:
        name: its name.
        topics: its topics, as they are named in the lake; empty for a pattern.
        table: its table, as it is named in the lake.
        dead_letters: its table of bad records.
    """

    def __init__(self, lake: Lake, spec: IngestorSpec) -> None:
        self._lake = lake
        self.name = spec.name
        self.topics = spec.spec.source.kafka.names
        self.table = str(spec.spec.table)
        self.dead_letters = str(spec.spec.dead_letters.table)

    @property
    def topic(self) -> str:
        """Its topic.

        Raises:
            ValueError: it has several, or a pattern.
        """
        (found,) = self.topics
        return found

    def produce(self, rows: Iterable[Row], *, key: Key = None) -> Offsets:
        """Send rows to its topic; see `Lake.produce`."""
        return self._lake.produce(self.topic, rows, key=key)

    def wait_for(self, offsets: Offsets | int, *, timeout_s: float = WAIT_S) -> None:
        """Wait until its table has passed the offsets of its topic; see `Lake.wait_for`."""
        self._lake.wait_for(self.topic, offsets, self.table, timeout_s=timeout_s)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of its table; see `Lake.rows`."""
        return self._lake.rows(self.table)

    def status(self) -> dict[str, Any]:
        """What ingest reports of it: conditions with reasons, lag, rows, bad records (docs/ingestors.md)."""
        found: dict[str, Any] = declaring.one(self._lake.backend.specs, self.name).to_json()
        return found

    def delete(self, *, timeout_s: float = ENDED_S) -> None:
        """Delete it and wait until its writers have ended; its table and topic stay.

        Raises:
            WaitError: they have not in time.
        """
        specs = self._lake.backend.specs
        with contextlib.suppress(NotFoundError):
            declaring.request_deletion(specs, self.name)
        self._lake.backend.wake()
        eventually(
            lambda: declaring.gone(specs, self.name),
            timeout_s=timeout_s,
            what=lambda: (
                f"the writers of ingestor {self.name} ended; {_ingestor(declaring.one(specs, self.name))}"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A namespace of the tests: its tables, topics and ingestors are dropped with it.

    `str(namespace)` is its name.

    Attributes:
        name: its name in the lake.
        lake: the lake.
        properties: of the namespace in the catalog.
    """

    name: str
    lake: Lake
    _ends: ExitStack = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def table(self, name: str) -> str:
        """The qualified name of a table of this namespace."""
        return f"{self.name}.{name}"

    def topic(self, name: str) -> str:
        """The name of a topic of this namespace."""
        return topic_name(self.name, name)

    def produce(self, topic: str, rows: Iterable[Row], *, key: Key = None, partitions: int = 1) -> Offsets:
        """Send rows to a topic of this namespace; see `Lake.produce`."""
        return self.lake.produce(self.topic(topic), rows, key=key, partitions=partitions)

    def ingest(self, spec: Spec, *, timeout_s: float = READY_S) -> Ingested:
        """Declare an ingestor in this namespace, and wait until it runs.

        Name, topics, table and dead letters of the spec are moved into the namespace; the rest stays as it
        is. So the spec that runs in production can be the one under test.

        Args:
            spec: a file, the text of one, or its values.
            timeout_s: how long it may take to run, in seconds.

        Raises:
            InvalidSpecError: the spec is invalid: field, value, what is allowed.
            IngestorError: it does not run in time; says why.
        """
        return self.lake._ingest(spec, into=self.name, ends=self._ends, timeout_s=timeout_s)


class Lake:
    """A lake: a running stack, or embedded in the test's process.

    Args:
        backend: its parts.
        session: part of the names of everything that the session makes; 1 to 20 lower-case letters, digits,
            `_`.
        embedded: whether it is embedded.
        keep: whether namespaces, topics and ingestors stay at the end.

    Attributes:
        backend: its parts.
        session: part of the names of everything that the session makes.
        embedded: whether it is embedded in the test's process, without Trino, Spark, gateway and services.
        trino: Trino.
        faults: what can be broken.
    """

    def __init__(self, backend: Backend, *, session: str, embedded: bool, keep: bool = False) -> None:
        self.backend = backend
        self.session = session
        self.embedded = embedded
        self.trino = Trino(backend)
        self.faults = Faults(backend)
        self._keep = keep
        self._numbers = itertools.count(1)
        self._of_test = ExitStack()
        self._topics: list[str] = []
        self._tables: list[str] = []
        self._declared: set[str] = set()
        self._namespaces: list[str] = []

    @property
    def catalog(self) -> Catalog:
        """The catalog, as pyiceberg has it."""
        return self.backend.catalog

    @property
    def spark(self) -> SparkSession:
        """A session of Spark Connect, the same for the whole session.

        Raises:
            NeedsStackError, NotInProfileError: there is no Spark; says what to do.
        """
        return self.backend.spark()

    @property
    def env(self) -> Mapping[str, str]:
        """Addresses and keys as `scripts/tarn env` prints them, for other clients.

        Raises:
            NeedsStackError: the lake is embedded.
        """
        return self.backend.env

    @contextmanager
    def namespace(self, name: str = "test") -> Iterator[Namespace]:
        """A namespace of one's own for the duration of the block.

        Args:
            name: what its name ends in, before a number.
        """
        made = f"kit_{self.session}_{slug(name)}_{next(self._numbers)}"
        self.catalog.create_namespace(made)
        with ExitStack() as ends:
            ends.callback(self._drop, made)
            yield Namespace(name=made, lake=self, _ends=ends)

    def produce(self, topic: str, rows: Iterable[Row], *, key: Key = None, partitions: int = 1) -> Offsets:
        """Send rows to a topic, as messages that the log has acknowledged when this returns.

        Args:
            topic: name of the topic; created if it is not there, and then deleted at the end of the session
                (with the namespace, if its name begins with that of one).
            rows: mappings become JSON objects; texts and bytes are sent as they are.
            key: name of the column whose text is the key of the message, or what makes the key of a row.
            partitions: number of partitions of a topic that is created.

        Returns:
            The offset of the last message of each partition that got any: what `wait_for` takes.

        Raises:
            InvalidRowsError: a row cannot be a message; none is sent.
            TarnError: the log does not take them.
        """
        found = messages_of(rows, key=key)
        self._ensure(topic, partitions)
        return self.backend.topics.produce(topic, found)

    def ingest(self, spec: Spec, *, timeout_s: float = READY_S) -> Ingested:
        """Declare an ingestor as it stands, wait until it runs, and delete it when the test has ended.

        It is deleted before the test's fixtures end.
        Its table is dropped at the end of the session, as its topic is, if it was not there before; its dead
        letters stay. Its names are the spec's own, which others on the same lake may have too:
        `Namespace.ingest` is for a spec that is to meet nobody.

        Args:
            spec: a file, the text of one, or its values.
            timeout_s: how long it may take to run, in seconds.

        Raises:
            InvalidSpecError: the spec is invalid: field, value, what is allowed.
            IngestorError: it does not run in time; says why.
        """
        return self._ingest(spec, into=None, ends=self._of_test, timeout_s=timeout_s)

    def wait_for(self, topic: str, offsets: Offsets | int, table: str, *, timeout_s: float = WAIT_S) -> None:
        """Wait until each message of a topic up to these offsets is a row of a table, or a dead letter.

        Args:
            topic: name of the topic.
            offsets: what `produce` returned, or the offset of a message in partition 0.
            table: qualified name of the table.
            timeout_s: the timeout, in seconds.

        Raises:
            WaitError: it has not in time; says how far it is, and how the table's ingestor is.
        """
        wanted = {0: offsets} if isinstance(offsets, int) else dict(offsets)

        def behind() -> dict[int, tuple[int, int]]:
            reached = self.offsets(topic, table)
            return {p: (reached.get(p, 0), o) for p, o in sorted(wanted.items()) if reached.get(p, 0) <= o}

        def tell() -> str:
            known = sorted({one for one, _ in self._maps(table)})
            other = (
                f" The table has offsets of topic {', '.join(known)}." if topic not in known and known else ""
            )
            where = ", ".join(
                f"partition {p} is at {at}, offset {o} is wanted ({o + 1 - at} behind)"
                for p, (at, o) in behind().items()
            )
            how = f"{where}.{other} {self._who_writes(table)}"
            return f"table {table} passed the offsets of topic {topic}: {how}"

        eventually(lambda: not behind(), timeout_s=timeout_s, what=tell)

    def offsets(self, topic: str, table: str) -> dict[int, int]:
        """Partition to the next offset of a topic that the table lacks; empty before the first commit.

        Raises:
            CorruptStateError: the table's offset map cannot be read.
        """
        found: dict[int, int] = {}
        for name, reached in self._maps(table):
            for partition, offset in reached.items() if name == topic else ():
                found[partition] = max(offset, found.get(partition, 0))
        return found

    def _maps(self, table: str) -> list[tuple[str, Mapping[int, int]]]:
        """Topic, and the next offset of each of its partitions, by stream of a table."""
        try:
            loaded = self.catalog.load_table(table)
        except (NoSuchTableError, NoSuchNamespaceError):
            return []
        state = TableState(json.loads(loaded.metadata.model_dump_json(by_alias=True)))
        maps = [offsets_in(state, stream) for stream in streams_named(state)]
        return [(one.source.topic, one.next) for one in maps if one is not None]

    def rows(self, table: str, *, trace: bool = False) -> list[dict[str, Any]]:
        """The rows of a table now, in no order.

        Args:
            table: qualified name of the table.
            trace: whether the column `_tarn`, which names the message of a row, is among them.

        Raises:
            pyiceberg.exceptions.NoSuchTableError: there is no such table.
        """
        found: list[dict[str, Any]] = self.catalog.load_table(table).scan().to_arrow().to_pylist()
        if not trace:
            for row in found:
                row.pop(TRACE_COLUMN, None)
        return found

    def eventually(
        self,
        look: Callable[[], T | None],
        *,
        timeout_s: float = 30.0,
        what: str | Callable[[], str] = "the condition",
        pause_s: float = PAUSE_S,
    ) -> T:
        """The first result that is true; see `tarn_testkit.eventually`.

        Raises:
            WaitError: there was none in time.
        """
        return eventually(look, timeout_s=timeout_s, what=what, pause_s=pause_s)

    def end_of_test(self) -> None:
        """End what belongs to the test that has ended."""
        self._of_test.close()

    def close(self) -> None:
        """End everything that the session made."""
        with ExitStack() as ends:  # the last is the first to run, and all run though one fails
            ends.callback(self.backend.close)
            for namespace in self._namespaces:
                ends.callback(self._drop_namespace, namespace)
            for table in self._tables:
                ends.callback(self._drop_table, table)
            ends.callback(self._delete_topics, "")
            ends.callback(self.end_of_test)

    def _ingest(self, spec: Spec, *, into: str | None, ends: ExitStack, timeout_s: float) -> Ingested:
        document, label = _document(spec)
        if into is not None:
            document = moved_into(document, into)
        found = spec_of(document, file=label)
        specs = self.backend.specs
        if found.name not in self._declared and not declaring.gone(specs, found.name):
            raise IngestorError(
                f"{label}: the lake has an ingestor {found.name}, which would be changed, and deleted after "
                "the test. Use namespace.ingest, which gives it a name of its own, or a stack of the kit's "
                "own (--tarn-profile). If an earlier run left it, remove it first: scripts/tarn delete "
                f"{found.name}"
            )
        for topic in found.spec.source.kafka.names:
            self._ensure(topic, found.spec.source.kafka.partitions)
        event_time = found.spec.event_time
        if into is not None and event_time is not None and event_time.complete_topic is not None:
            self._ensure(event_time.complete_topic, 1)
        table = str(found.spec.table)
        if into is None and not self._keep and not self.catalog.table_exists(table):
            self._tables.append(table)
            if not self._has_namespace(table.rpartition(".")[0]):
                self._namespaces.append(table.rpartition(".")[0])
        declaring.put(specs, document, label, take_over=False)
        self._declared.add(found.name)
        made = Ingested(self, found)
        if not self._keep:
            ends.callback(made.delete)
            ends.callback(self._declared.discard, found.name)
        self.backend.wake()

        def ready() -> bool:
            state = declaring.one(specs, found.name).ready
            if state["reason"] in HOPELESS:
                raise IngestorError(_ingestor(declaring.one(specs, found.name)))
            return bool(state["status"])

        try:
            eventually(ready, timeout_s=timeout_s)
        except WaitError:
            said = _ingestor(declaring.one(specs, found.name))
            raise IngestorError(f"{label}: it does not run after {timeout_s:g} s. {said}") from None
        return made

    def _ensure(self, topic: str, partitions: int) -> None:
        if self.backend.topics.ensure(topic, partitions=partitions) and not self._keep:
            self._topics.append(topic)

    def _delete_topics(self, prefix: str) -> None:
        """Delete the topics that the session made and whose names begin so."""
        with ExitStack() as each:
            for topic in [one for one in self._topics if one.startswith(prefix)]:
                each.callback(self._delete_topic, topic)

    def _delete_topic(self, topic: str) -> None:
        self.backend.topics.delete(topic)
        self._topics.remove(topic)  # not if that failed: the end of the session tries again

    def _drop_table(self, table: str) -> None:
        with contextlib.suppress(NoSuchTableError):
            self.catalog.purge_table(table)

    def _drop_namespace(self, name: str) -> None:
        """Drop a namespace, unless others have tables in it by now."""
        with contextlib.suppress(NoSuchNamespaceError, NamespaceNotEmptyError):
            self.catalog.drop_namespace(name)

    def _has_namespace(self, name: str) -> bool:
        try:
            self.catalog.load_namespace_properties(name)
        except NoSuchNamespaceError:
            return False
        return True

    def _who_writes(self, table: str) -> str:
        """How the ingestors of a table are, for a message."""
        try:
            found = [
                _ingestor(one)
                for one in declaring.everything(self.backend.specs)
                if str(one.declared.spec.spec.table) == table
            ]
        except TarnError as e:
            return f"its ingestors cannot be read: {e.message}"
        return " ".join(found) or "No ingestor that writes it is declared: lake.ingest(spec) declares one."

    def _drop(self, name: str) -> None:
        """Drop a namespace with its tables, views and topics."""
        if self._keep:
            return
        with ExitStack() as ends:  # a log that does not answer keeps no table
            ends.callback(self._drop_tables, name)
            ends.callback(self._delete_topics, f"{name}.")

    def _drop_tables(self, name: str) -> None:
        for drop, found in (
            (self.catalog.purge_table, self.catalog.list_tables(name)),
            (self.catalog.drop_view, self.catalog.list_views(name)),
        ):
            for identifier in found:
                with contextlib.suppress(NoSuchTableError, NoSuchViewError):
                    drop(identifier)
        for child in self.catalog.list_namespaces(name):
            self._drop_tables(".".join(child))
        with contextlib.suppress(NoSuchNamespaceError):
            try:
                self.catalog.drop_namespace(name)
            except NamespaceNotEmptyError as e:
                raise NamespaceNotEmptyError(f"{e}; something of the test still writes into {name}") from e


def _document(spec: Spec) -> tuple[Mapping[str, Any], str]:
    """The values of a spec, and what messages call it.

    Raises:
        InvalidSpecError: it is not one mapping of YAML.
        FileNotFoundError: there is no such file.
    """
    if isinstance(spec, Mapping):
        return spec, "the spec"
    if isinstance(spec, Path) or re.fullmatch(r"[^\n]+\.ya?ml", spec):
        path = Path(spec)
        return parse_document(path.read_text(encoding="utf-8"), file=path.name), path.name
    return parse_document(spec, file="the spec"), "the spec"


def _ingestor(one: declaring.Shown) -> str:
    """How an ingestor is, in one sentence."""
    status = one.status or {}
    ready, lag = one.ready, status.get("lag")
    return (
        f"Ingestor {one.declared.name}: {'ready' if ready['status'] else 'not ready'} ({ready['reason']}"
        f"{': ' if ready['message'] else ''}{ready['message']}), lag {'unknown' if lag is None else lag}, "
        f"{status.get('rows', 0)} rows and {status.get('badRecords', 0)} bad records."
    )
