"""Logs of tables in memory, for tests of the gateway: fencing, transactions, deaths between two steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tarn.core.errors import OutcomeUnknownError, SourceChangedError, UnavailableError
from tarn.core.log_claims import topic_of
from tarn.core.offsets import TopicIdentity
from tarn.core.source import NoSuchTopicError
from tarn.core.table_log import LogFencedError, LogPlace, Record
from tarn.testing.memory_topic import HOLE, MemoryTopicClient, Topic

STEPS = ("open", "fenced", "claims", "begin", "rows", "claimed", "commit", "committed")
"""Where a test can interfere, in their order: `commit` is before the broker decides, `committed` after."""


@dataclass(slots=True)
class Held:
    """The log of one table at the broker.

    Attributes:
        epoch: number of the last process that opened it.
        claims: the committed claims.
        claims_id: id of the topic that has them.
        open: rows of the transaction that is not decided yet; None without one.
    """

    epoch: int = 0
    claims: list[Record] = field(default_factory=list)
    claims_id: int = 1
    open: list[tuple[int, bytes]] | None = None


class MemoryLogs:
    """A `TableLogs` over topics in memory, which ingestors read as they read others.

    Attributes:
        at: called with each step of any log, and may raise: UnavailableError for a broker that does not
            respond, another exception for a gateway that dies there.
        aborted: number of transactions that were aborted.
        lock: held while the broker's state changes.
    """

    def __init__(self, topics: MemoryTopicClient) -> None:
        self._topics = topics
        self._held: dict[str, Held] = {}
        self.at: Callable[[str], None] = lambda step: None
        self.aborted = 0
        self.lock = threading.RLock()

    def of(self, table_uuid: str) -> MemoryLog:
        """See `TableLogs.of`."""
        return MemoryLog(self, topic_of(table_uuid))

    def held(self, topic: str) -> Held:
        """The log of a topic."""
        return self._held.setdefault(topic, Held())

    def topic(self, name: str) -> Topic:
        """The topic itself.

        Raises:
            NoSuchTopicError: it does not exist.
        """
        found = self._topics.topics.get(name)
        if found is None:
            raise NoSuchTopicError(f"topic {name} does not exist")
        return found

    def recreate_claims(self, topic: str) -> None:
        """Delete the claims of a log, and let there be a topic for others."""
        held = self.held(topic)
        held.claims, held.claims_id = [], held.claims_id + 1

    def abort(self, topic: str) -> None:
        """End the open transaction of a log: its offsets stay without records."""
        held = self.held(topic)
        if held.open is None:
            return
        log = self.topic(topic)
        for partition, _ in held.open:
            log.send(partition, HOLE)
        for partition in {partition for partition, _ in held.open}:
            log.send(partition, HOLE)
        held.open = None
        self.aborted += 1


class MemoryLog:
    """A `TableLog` in memory.

    Args:
        logs: the broker.
        topic: the topic with the rows.
    """

    def __init__(self, logs: MemoryLogs, topic: str) -> None:
        self._logs = logs
        self._topic = topic
        self._epoch = 0
        self._read = 0
        self._claims_id = 0

    def open(self) -> LogPlace:
        """See `TableLog.open`."""
        self._logs.at("open")
        log, held = self._logs.topic(self._topic), self._logs.held(self._topic)
        self._require_same_claims(held)
        with self._logs.lock:
            held.epoch += 1
            self._epoch = held.epoch
            self._logs.abort(self._topic)
        self._logs.at("fenced")
        return LogPlace(
            identity=TopicIdentity(cluster=log.cluster, topic=self._topic, topic_id=log.topic_id),
            ends={partition: len(values) for partition, values in log.logs.items()},
        )

    def ends(self) -> dict[int, int]:
        """See `TableLog.ends`."""
        self._logs.at("ends")
        log = self._logs.topic(self._topic)
        return {partition: len(values) for partition, values in log.logs.items()}

    def claims(self) -> Iterator[Record]:
        """See `TableLog.claims`."""
        held = self._logs.held(self._topic)
        self._require_same_claims(held)
        while self._read < len(held.claims):
            self._logs.at("claims")
            yield held.claims[self._read]
            self._read += 1

    def append(
        self, rows: Sequence[tuple[int, bytes]], claims: Callable[[Sequence[int]], Sequence[Record]]
    ) -> None:
        """See `TableLog.append`."""
        log, held = self._logs.topic(self._topic), self._logs.held(self._topic)
        self._logs.at("begin")
        with self._logs.lock:
            self._require_own(held)
            ends = {partition: len(values) for partition, values in log.logs.items()}
            offsets = []
            for partition, _ in rows:
                offsets.append(ends[partition])
                ends[partition] += 1
            held.open = list(rows)
        self._logs.at("rows")
        try:
            made = claims(offsets)
        except Exception:
            with self._logs.lock:
                self._logs.abort(self._topic)
            raise
        self._logs.at("claimed")
        try:
            self._logs.at("commit")
        except UnavailableError as e:
            raise OutcomeUnknownError(f"the broker did not confirm: {e.message}") from e
        with self._logs.lock:
            if held.epoch != self._epoch:
                raise OutcomeUnknownError("another process has taken the log")
            for partition, value in rows:
                log.send(partition, value)
            for partition in {partition for partition, _ in rows}:
                log.send(partition, HOLE)
            held.claims += made
            held.open = None
        try:
            self._logs.at("committed")
        except UnavailableError as e:
            raise OutcomeUnknownError(f"the answer is lost: {e.message}") from e

    def rest(self) -> None:
        """See `TableLog.rest`."""

    def close(self) -> None:
        """See `TableLog.close`."""

    def _require_same_claims(self, held: Held) -> None:
        """Require that the topic with the claims is the one of earlier calls.

        Raises:
            SourceChangedError: it is another one.
        """
        self._claims_id = self._claims_id or held.claims_id
        if self._claims_id != held.claims_id:
            raise SourceChangedError(f"the claims of {self._topic} are another topic: restart the gateway")

    def _require_own(self, held: Held) -> None:
        """Require that no other process has taken the log.

        Raises:
            LogFencedError: one has.
        """
        if held.epoch != self._epoch:
            raise LogFencedError("another process writes the log")
