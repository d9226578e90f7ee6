"""Streams of a table that do not run in this process: whether they hold its completion events back.

Nobody here knows how far such a stream has read its topic: its spec is invalid or was removed, or another
process runs it. So it holds the others back at its own watermark, unless nothing can come from it any more,
or a person says that it has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import structlog

from tarn.core.errors import CorruptStateError, NotFoundError, TarnError
from tarn.core.offsets import OffsetMap
from tarn.core.source import TopicClient
from tarn.core.table_state import TableState
from tarn.core.watermark import EventTimeRule, complete_through, idle
from tarn.ingest.batch_commit import offsets_in, streams_named, watermark_in

log = structlog.get_logger()

ENDED_PREFIX = "tarn.ended."
"""Table property that a person sets to `true` for a stream that is not to hold events back."""
ASK_S = 30.0
"""Interval in which a topic is asked how far it reaches."""
ASK_GONE_S = 600.0
"""The same once the topic is gone, or another one has its name: of such topics there may be ever more."""


class AbsentStreams:
    """The streams of one table without a reader in this process.

    Args:
        topics: Kafka.
        table: name of the table.
        rule: rule of the watermark of the stream that they might hold back.
    """

    def __init__(self, topics: TopicClient, *, table: str, rule: EventTimeRule) -> None:
        self._topics = topics
        self._table = table
        self._rule = rule
        self._asked: dict[str, tuple[float, OffsetMap, str]] = {}  # until when it holds, for what, and why
        self._logged: dict[str, str] = {}

    def held_at(
        self, state: TableState, through_us: int, *, here: Collection[str], now_s: float, now_ms: int
    ) -> tuple[int | None, tuple[str, ...]]:
        """How far the absent streams let the table be complete.

        Args:
            state: version of the table.
            through_us: the time up to which the streams that run here have it complete, in microseconds since
                the epoch.
            here: names of the streams that run here.
            now_s: monotonic time in seconds.
            now_ms: wall-clock time in milliseconds since the epoch.

        Returns:
            The time likewise, None if it is unknown of one of them; and the streams that hold it back.
        """
        found: int | None = through_us
        held: dict[str, str] = {}
        for stream in sorted(streams_named(state) - set(here)):
            if state.properties.get(ENDED_PREFIX + stream, "").lower() == "true":
                continue
            for at_us, reason in self._holds(state, stream, through_us, now_s=now_s, now_ms=now_ms):
                found = None if at_us is None or found is None else min(found, at_us)
                held[stream] = reason
        for stream, reason in held.items():
            if self._logged.get(stream) != reason:
                log.warning(
                    "a stream that does not run here holds completion events back",
                    table=self._table,
                    stream=stream,
                    reason=reason,
                    do="let its ingestor run until it has read its topic to the end; if it is not to come "
                    f"back, set the table property {ENDED_PREFIX}{stream} to true",
                )
        self._logged = held
        return found, tuple(held)

    def _holds(
        self, state: TableState, stream: str, through_us: int, *, now_s: float, now_ms: int
    ) -> Iterator[tuple[int | None, str]]:
        """Yield how far a stream lets the table be complete and why, if it holds it back."""
        try:
            mark, offsets = watermark_in(state, stream), offsets_in(state, stream)
        except CorruptStateError as e:
            yield None, e.message
            return
        if mark is None or offsets is None:
            return
        at_us = complete_through(state, mark)
        if at_us is not None and at_us >= through_us:
            return
        if not idle(mark, self._rule, now_ms=now_ms):
            yield at_us, "it had messages, or began, a short time ago"
            return
        reason = self._unread(stream, offsets, now_s=now_s)
        if reason:
            yield at_us, reason

    def _unread(self, stream: str, offsets: OffsetMap, *, now_s: float) -> str:
        """Why messages of a stream may still come; empty if it has read its topic to the end."""
        known = self._asked.get(stream)
        if known is None or now_s >= known[0] or known[1] != offsets:
            reason, holds_s = self._ask(offsets)
            known = self._asked[stream] = (now_s + holds_s, offsets, reason)
        return known[2]

    def _ask(self, offsets: OffsetMap) -> tuple[str, float]:
        """Why messages may still come, empty if they cannot; and for how many seconds that holds."""
        topic = offsets.source.topic
        try:
            reader = self._topics.open(topic, stream="complete")
            try:
                if reader.identity() != offsets.source:
                    return "", ASK_GONE_S  # it was recreated: what was not read is gone
                ends = {p: bounds.end for p, bounds in reader.bounds().items()}
            finally:
                reader.close()
        except NotFoundError:
            return "", ASK_GONE_S
        except TarnError as e:
            return f"its topic {topic} cannot be asked: {e.message}", ASK_S
        behind = [p for p, end in ends.items() if end > offsets.next.get(p, 0)]
        return f"it has not read partitions {behind} of {topic} to the end" if behind else "", ASK_S
