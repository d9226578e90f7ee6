"""The first messages of a topic, which the columns of a table are inferred from.

Nothing is kept of them: whoever took a sample reads the same messages again as records of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tarn.core.creation import Sampled, sampled
from tarn.core.errors import UnavailableError
from tarn.core.source import NoMessagesError, TopicReader
from tarn.core.spec import IngestorSpec
from tarn.ingest.context import IngestContext, StoppedError

SAMPLE_RECORDS_MAX = 1_000
SAMPLE_BYTES_MAX = 4_194_304
WAIT_S_MAX = 30.0
"""How long records that the log says it has may take to come, in seconds."""


class Sampler:
    """Takes samples of one topic.

    Args:
        spec: ingestor spec.
        source: reader of the topic; its position is moved.
        context: dependencies and limits.
        name: name of the ingestor, with its replica, in the status.
    """

    def __init__(self, spec: IngestorSpec, source: TopicReader, context: IngestContext, *, name: str) -> None:
        self._spec = spec
        self._source = source
        self._context = context
        self._name = name

    def first(self) -> Sampled:
        """What the first messages of the log have that can be read at all.

        Raises:
            NoMessagesError: there are none yet.
            UnavailableError: they do not come.
        """
        bounds = self._source.bounds()
        for messages in self._samples({p: b.start for p, b in bounds.items()}):
            found = sampled(self._spec.spec, messages)
            if found.types:
                return found
        raise NoMessagesError(
            f"topic {self._spec.topic} has no message yet that the columns of {self._spec.spec.table} could "
            "be inferred from; the table is created with the first one"
        )

    def next(self, positions: Mapping[int, int]) -> Sampled | None:
        """What the next messages have; None if there are none yet.

        Raises:
            UnavailableError: they do not come.
        """
        for messages in self._samples(positions):
            return sampled(self._spec.spec, messages)
        return None

    def _samples(self, positions: Mapping[int, int]) -> Iterator[list[bytes | None]]:
        """Messages from these positions to the present end of the log, some at a time."""
        ends = {p: b.end for p, b in self._source.bounds().items() if p in positions}
        at = dict(positions)
        self._source.seek(at)
        messages: list[bytes | None] = []
        held = 0
        since_s = self._context.clock()
        while any(at[p] < end for p, end in ends.items()):
            if self._context.stopping():
                raise StoppedError("the process stops")
            now_s = self._context.clock()
            self._context.registry.update(self._name, beat_s=now_s)
            polled = self._source.poll(
                records_max=SAMPLE_RECORDS_MAX, timeout_s=self._context.limits.poll_s_max
            )
            for part in polled:
                at[part.partition] = part.end
                messages += part.values
                held += sum(len(value) for value in part.values if value is not None)
            if polled:
                since_s = now_s
            elif messages:
                break
            elif now_s - since_s >= WAIT_S_MAX:
                raise UnavailableError(
                    f"topic {self._spec.topic} has records for a sample, and none came in {WAIT_S_MAX:g} s"
                )
            if len(messages) >= SAMPLE_RECORDS_MAX or held >= SAMPLE_BYTES_MAX:
                yield messages[:SAMPLE_RECORDS_MAX]
                messages, held = [], 0
        if messages:
            yield messages[:SAMPLE_RECORDS_MAX]
