"""Which topics an ingestor reads: those that it names, or those that match its pattern now."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tarn.core.errors import TarnError
from tarn.core.source import NoSuchTopicError
from tarn.core.spec import IngestorSpec
from tarn.ingest.context import IngestContext, StoppedError
from tarn.ingest.status import State, StatusReporter

TOPICS_LOOK_S = 30.0
"""How often a pattern is compared with the names of the topics, in seconds."""


class TopicWatch:
    """Compares patterns with the names of all topics, each in a thread of its own, as Kafka may not answer.

    Args:
        context: dependencies of the ingestors.
    """

    def __init__(self, context: IngestContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._found: dict[tuple[str, str], tuple[str, ...] | None] = {}
        self._changed: Callable[[], None] = lambda: None

    def on_change(self, call: Callable[[], None]) -> None:
        """Have this called, from any thread, when a pattern matches other topics than before."""
        self._changed = call

    def topics(self, spec: IngestorSpec) -> tuple[str, ...] | None:
        """The topics of an ingestor; None while its pattern was not compared yet."""
        kafka = spec.spec.source.kafka
        if kafka.topic_pattern is None:
            return kafka.names
        key = (spec.name, kafka.topic_pattern)
        with self._lock:
            if key in self._found:
                return self._found[key]
            for other in [one for one in self._found if one[0] == spec.name]:
                del self._found[other]  # its thread ends at its next look
            self._found[key] = None
        threading.Thread(
            target=self._watch, args=(key, spec), name=f"topics-{spec.name}", daemon=True
        ).start()
        return None

    def keep(self, names: frozenset[str]) -> None:
        """Forget the patterns of all ingestors but these."""
        with self._lock:
            gone = [key for key in self._found if key[0] not in names]
            for key in gone:
                del self._found[key]
        for name, _ in gone:
            self._context.registry.remove(name)

    def _watch(self, key: tuple[str, str], spec: IngestorSpec) -> None:
        reporter = StatusReporter(
            spec.name, self._context.registry, clock=self._context.clock, now_ms=self._context.ports.now_ms
        )
        seen: tuple[str, ...] = ()
        while not self._context.stopping():
            found = self._matching(spec, reporter, begun=bool(seen))
            with self._lock:
                if key not in self._found:
                    return
                changed = found is not None and found != self._found[key]
                if found is not None:
                    self._found[key] = seen = found
            if changed:
                self._changed()
            try:
                self._context.ports.sleep(TOPICS_LOOK_S)
            except StoppedError:
                return

    def _matching(
        self, spec: IngestorSpec, reporter: StatusReporter, *, begun: bool
    ) -> tuple[str, ...] | None:
        """Topics that match; None if Kafka cannot be asked. Why there are none is on the status page."""
        kafka = spec.spec.source.kafka
        try:
            found = tuple(topic for topic in self._context.sources.list_topics() if kafka.matches(topic))
            if not found and not begun:
                again = f"looking again every {TOPICS_LOOK_S:.0f} s"
                raise NoSuchTopicError(f"no topic matches {kafka.topic_pattern!r}; {again}")
        except NoSuchTopicError as e:
            reporter.tell(State.WAITING, e)
            return ()
        except TarnError as e:
            reporter.tell(State.WAITING, e)
            return None
        except Exception as e:  # noqa: BLE001 - a defect here must not end the search for topics
            reporter.tell_defect(e)
            return None
        self._context.registry.remove(spec.name)
        return found
