"""Sends an event when a partition of the table is complete: at least once, decided from the table itself.

What is due is what the table lists as open. In memory is only what was sent and is still on the list, with
the version that it was sent on: a late row that any reader added since then makes the event due again.
"""

from __future__ import annotations

from itertools import islice

import structlog

from tarn.core import completion
from tarn.core.completion import Announced, OpenPartitions
from tarn.core.errors import TarnError
from tarn.core.source import TopicClient
from tarn.core.table_state import COMMIT_ID_KEY, TableState
from tarn.core.watermark import EventTimeRule, as_text, complete_through, idle
from tarn.ingest.absent_streams import AbsentStreams
from tarn.ingest.batch_commit import open_in, watermark_in
from tarn.ingest.status import StatusRegistry

log = structlog.get_logger()

EVENTS_MAX = 1_000
"""Events that are sent at once; the next look sends the next ones."""
RETRY_S = 30.0


class Announcer:
    """The events of one stream.

    Args:
        topics: Kafka, which takes the events.
        topic: topic of the events.
        name: name of the ingestor, as the status registry sums up its readers.
        reader: name of the reader whose counters the events are added to.
        stream: name of its stream.
        table: name of its table.
        rule: rule of its watermark.
        registry: status registry, which knows the other streams of the table that run here.
    """

    def __init__(
        self,
        topics: TopicClient,
        topic: str,
        *,
        name: str,
        reader: str,
        stream: str,
        table: str,
        rule: EventTimeRule,
        registry: StatusRegistry,
    ) -> None:
        self._sender = topics
        self._topic = topic
        self._name = name
        self._reader = reader
        self._stream = stream
        self._table = table
        self._rule = rule
        self._registry = registry
        self._absent = AbsentStreams(topics, table=table, rule=rule)
        self._sent = Announced()
        self._made = False
        self._not_before_s = 0.0

    @property
    def announced(self) -> Announced:
        """Events that were sent, and that no commit has recorded yet."""
        return self._sent

    def look(self, state: TableState, *, now_s: float, now_ms: int) -> None:
        """Send what is due by this version of the table; a failure is logged, and tried again.

        Args:
            state: version of the table.
            now_s: monotonic time in seconds.
            now_ms: wall-clock time in milliseconds since the epoch.
        """
        field, opened = completion.time_field(state, self._rule.column), open_in(state, self._stream)
        if field is None or opened is None:
            self._sent = Announced()
            return
        opened = completion.followed(opened, state, field)
        self._follow(state, opened)
        through_us = self.through(state, now_s=now_s, now_ms=now_ms)
        if through_us is None or now_s < self._not_before_s:
            return
        sent = self._sent.numbers
        ended = opened.numbers(field.number(through_us))
        due = list(islice((n for n in ended if n not in sent or opened.late_at(n) > sent[n]), EVENTS_MAX))
        if not due:
            return
        summary = (state.head or {}).get("summary") or {}
        events = [
            completion.event(
                state,
                field,
                number,
                table=self._table,
                stream=self._stream,
                through=as_text(through_us),
                commit_id=str(summary.get(COMMIT_ID_KEY, "")),
            )
            for number in due
        ]
        try:
            if not self._made:
                self._sender.create(self._topic, partitions=1)
                self._made = True
            self._sender.send(self._topic, events)
        except TarnError as e:
            # Somebody may have deleted the topic.
            self._made, self._not_before_s = False, now_s + RETRY_S
            self._registry.add(self._reader, events_failed=1)
            log.warning(
                "partitions could not be announced; it is tried again",
                ingestor=self._reader,
                topic=self._topic,
                partitions=len(due),
                reason=e.message,
            )
            return
        numbers = {**sent, **dict.fromkeys(due, state.last_sequence)}
        self._sent = Announced(at=state.head_id, unit=field.unit, numbers=numbers)
        self._registry.add(self._reader, events=len(due))
        log.info(
            "partitions announced",
            ingestor=self._reader,
            topic=self._topic,
            partitions=len(due),
            last=field.text(due[-1]),
            complete_through=as_text(through_us),
        )

    def _follow(self, state: TableState, opened: OpenPartitions) -> None:
        """Forget what the table has recorded; all after a rollback, or if its partitions changed."""
        still = {n: at for n, at in self._sent.holding(state, opened.unit).items() if n in opened}
        self._sent = Announced(at=state.head_id, unit=opened.unit, numbers=still) if still else Announced()

    def through(self, state: TableState, *, now_s: float, now_ms: int) -> int | None:
        """The time up to which the table is complete: the earliest of its streams' that have not stopped.

        A stream has stopped if all its partitions are idle and it has read its topic to the end. Streams that
        do not run here count too; see `AbsentStreams`.

        Returns:
            Microseconds since the epoch; None while it is unknown of one stream.
        """
        mark = watermark_in(state, self._stream)
        found = None if mark is None else complete_through(state, mark)
        here = {self._stream}
        for name, status in self._registry.ingestors().items():
            if status.table != self._table:
                continue
            here.add(status.stream)
            if name == self._name or not status.event_column or found is None:
                continue
            mark = watermark_in(state, status.stream)
            if status.lag == 0 and (mark is None or idle(mark, self._rule, now_ms=now_ms)):
                continue
            other = None if mark is None else complete_through(state, mark)
            found = None if other is None else min(found, other)
        held: tuple[str, ...] = ()
        if found is not None:
            found, held = self._absent.held_at(state, found, here=here, now_s=now_s, now_ms=now_ms)
        self._registry.update(self._reader, held_by=held)
        return found
