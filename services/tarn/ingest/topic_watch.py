"""Which topics an ingestor reads: those that it names, or those that match its pattern now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tarn.core.errors import TarnError
from tarn.core.source import NoSuchTopicError
from tarn.core.spec import IngestorSpec
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.status import State, StatusReporter

log = structlog.get_logger()

TOPICS_LOOK_S = 30.0
"""How often a pattern is compared with the names of the topics, in seconds."""


@dataclass(slots=True)
class _Watch:
    """A pattern that a thread compares, and the topics that it matches; None: it was not compared yet."""

    pattern: str
    found: tuple[str, ...] | None = None


class TopicWatch:
    """Compares patterns with the names of all topics, each in a thread of its own, as Kafka may not answer.

    Args:
        context: dependencies of the ingestors.
    """

    def __init__(self, context: IngestContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}
        self._changed: Callable[[], None] = lambda: None

    def on_change(self, call: Callable[[], None]) -> None:
        """Have this called, from any thread, when a pattern matches other topics than before."""
        self._changed = call

    def topics(self, spec: IngestorSpec) -> tuple[str, ...] | None:
        """The topics of an ingestor; None while its pattern was not compared yet."""
        kafka = spec.spec.source.kafka
        if kafka.topic_pattern is None:
            self._forget(spec.name)
            return kafka.names
        with self._lock:
            watch = self._watches.get(spec.name)
            if watch is not None and watch.pattern == kafka.topic_pattern:
                return watch.found
            # The thread of a former one ends at its next look.
            watch = self._watches[spec.name] = _Watch(kafka.topic_pattern)
        thread = threading.Thread(
            target=self._watch, args=(watch, spec), name=f"topics-{spec.name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as e:
            # Without a thread nobody would ever compare it; the next pass tries again.
            with self._lock:
                del self._watches[spec.name]
            log.warning("a pattern of topics waits for a thread", ingestor=spec.name, reason=str(e))
        return None

    def keep(self, names: frozenset[str]) -> None:
        """Forget the patterns of all ingestors but these."""
        with self._lock:
            gone = self._watches.keys() - names
        for name in gone:
            self._forget(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            # Whatever is there of this name without a watch is a reader's.
            if self._watches.pop(name, None) is not None:
                self._context.registry.remove(name)

    def _watch(self, watch: _Watch, spec: IngestorSpec) -> None:
        reporter = StatusReporter(
            spec.name, self._context.registry, clock=self._context.clock, now_ms=self._context.ports.now_ms
        )
        seen: tuple[str, ...] = ()
        while not self._context.stopping():
            found, error = self._matching(spec, begun=bool(seen))
            with self._lock:
                if self._watches.get(spec.name) is not watch:
                    return
                changed = found is not None and found != watch.found
                if found is not None:
                    watch.found = seen = found
                self._show(reporter, spec.name, error)
            if changed:
                self._changed()
            try:
                self._context.ports.sleep(TOPICS_LOOK_S)
            except StoppedError:
                return

    def _show(self, reporter: StatusReporter, name: str, error: Exception | None) -> None:
        """Show on the status page why there are no topics."""
        if error is None:
            self._context.registry.remove(name)
        elif isinstance(error, TarnError):
            reporter.tell(State.WAITING, error)
        else:
            reporter.tell_defect(error)

    def _matching(
        self, spec: IngestorSpec, *, begun: bool
    ) -> tuple[tuple[str, ...] | None, Exception | None]:
        """Topics that match, None if Kafka cannot be asked; and why there are none."""
        kafka = spec.spec.source.kafka
        try:
            found = tuple(topic for topic in self._context.sources.list_topics() if kafka.matches(topic))
            if not found and not begun:
                again = f"looking again every {TOPICS_LOOK_S:.0f} s"
                raise NoSuchTopicError(f"no topic matches {kafka.topic_pattern!r}; {again}")
        except NoSuchTopicError as e:
            return (), e
        except Exception as e:  # noqa: BLE001 - a defect here must not end the search for topics
            return None, e
        return found, None
