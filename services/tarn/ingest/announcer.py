"""Sends an event when a partition of the table is complete: at least once, decided from the table itself."""

from __future__ import annotations

from itertools import islice

import structlog

from tarn.core import completion
from tarn.core.errors import TarnError
from tarn.core.source import EventSender
from tarn.core.table_state import COMMIT_ID_KEY, TableState
from tarn.core.watermark import EventTimeRule, as_text, complete_through, idle
from tarn.ingest.batch_commit import open_in, watermark_in
from tarn.ingest.status import StatusRegistry

log = structlog.get_logger()

EVENTS_MAX = 1_000
"""Events that are sent at once; the next look sends the next ones."""
RETRY_S = 30.0


class Announcer:
    """The events of one stream.

    Args:
        sender: sends events.
        topic: topic of the events.
        name: name of the ingestor.
        stream: name of its stream.
        table: name of its table.
        rule: rule of its watermark.
        registry: status registry, which knows the other streams of the table.
    """

    def __init__(
        self,
        sender: EventSender,
        topic: str,
        *,
        name: str,
        stream: str,
        table: str,
        rule: EventTimeRule,
        registry: StatusRegistry,
    ) -> None:
        self._sender = sender
        self._topic = topic
        self._name = name
        self._stream = stream
        self._table = table
        self._rule = rule
        self._registry = registry
        self._sent: set[int] = set()
        self._sent_at: int | None = None
        self._made = False
        self._not_before_s = 0.0

    @property
    def sent(self) -> frozenset[int]:
        """Partitions whose event was sent, and which no commit has recorded yet."""
        return frozenset(self._sent)

    def recorded(self, numbers: frozenset[int]) -> None:
        """A commit has recorded these; if one of them got rows with it, it is announced again."""
        self._sent -= numbers

    def plan(self, state: TableState) -> None:
        """Begin with this version; what was sent is void if it does not build on what was announced."""
        if self._sent_at is not None and not state.is_ancestor(self._sent_at):
            self._sent.clear()

    def look(self, state: TableState, *, now_s: float, now_ms: int) -> None:
        """Send what is due by this version of the table; a failure is logged, and tried again.

        Args:
            state: version of the table.
            now_s: monotonic time in seconds.
            now_ms: wall-clock time in milliseconds since the epoch.
        """
        field, opened = completion.time_field(state, self._rule.column), open_in(state, self._stream)
        through_us = None if field is None else self.through(state, now_ms=now_ms)
        if field is None or opened is None or opened.field != field.name or through_us is None:
            return
        if now_s < self._not_before_s:
            return
        ended = (n for n in opened.numbers(field.number(through_us)) if n not in self._sent)
        due = list(islice(ended, EVENTS_MAX))
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
            self._not_before_s = now_s + RETRY_S
            self._registry.add(self._name, events_failed=1)
            log.warning(
                "partitions could not be announced; it is tried again",
                ingestor=self._name,
                topic=self._topic,
                partitions=len(due),
                reason=e.message,
            )
            return
        self._sent.update(due)
        self._sent_at = state.head_id
        self._registry.add(self._name, events=len(due))
        log.info(
            "partitions announced",
            ingestor=self._name,
            topic=self._topic,
            partitions=len(due),
            last=field.text(due[-1]),
            complete_through=as_text(through_us),
        )

    def through(self, state: TableState, *, now_ms: int) -> int | None:
        """The time up to which the table is complete: the earliest of its streams' that have not stopped.

        A stream has stopped if all its partitions are idle and it has read its topic to the end.

        Returns:
            Microseconds since the epoch; None while it is unknown of one stream.
        """
        mark = watermark_in(state, self._stream)
        found = None if mark is None else complete_through(state, mark)
        for name, status in self._registry.ingestors().items():
            if name == self._name or status.table != self._table or not status.event_column or found is None:
                continue
            mark = watermark_in(state, status.stream)
            if status.lag == 0 and (mark is None or idle(mark, self._rule, now_ms=now_ms)):
                continue
            other = None if mark is None else complete_through(state, mark)
            found = None if other is None else min(found, other)
        return found
