"""Batches of several streams with real files, handed over step by step: commits without ingestors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.offsets import OffsetRange, TopicIdentity
from tarn.core.table_state import WrittenFile
from tarn.ingest.batch_commit import BatchCommit, offsets_in
from tarn.ingest.committer import Committer
from tarn.ingest.group import Member
from tarn.ingest.merge_commit import MergeCommit
from tests.support.lake import Lake, order, spec

COLUMNS = spec().spec.columns
assert COLUMNS is not None


class Hands:
    """Makes batches of streams of a lake's table of orders, and commits them.

    Args:
        lake: the lake; its table is created, without a snapshot, if it does not exist.
        catalog: catalog of the commits; the lake's own by default.
    """

    def __init__(self, lake: Lake, catalog: Any = None) -> None:
        self.lake = lake
        context = lake.context()
        ingestor = lake.ingestor()
        table = ingestor.table
        self.new_id = context.new_id
        self.committer = Committer(catalog or lake.catalog, table, ports=context.ports)
        Committer(lake.local, table, ports=context.ports).ensure(ingestor.files.create_request())
        self.files = context.tables.table(str(table), COLUMNS.fields, trace=True)

    def write(self, topic: str, partition: int, start: int, end: int) -> tuple[WrittenFile, ...]:
        """The file of these messages."""
        n = end - start
        decoder = Decoder(COLUMNS.fields, source=topic, trace=True, record_bytes_max=10_000)
        batch = RawBatch(
            partitions=[partition] * n,
            offsets=list(range(start, end)),
            times_ms=[0] * n,
            keys=[None] * n,
            values=[order(o) for o in range(start, end)],
            ranges=(),
        )
        writer = self.files.writer(self.lake.table())
        return writer.put(writer.encode(decoder.decode(batch).rows))

    def batch(
        self, partition: int, start: int, end: int, *, stream: str = "orders", **options: Any
    ) -> BatchCommit:
        """A batch of a stream, whose topic has its name."""
        return BatchCommit(
            commit_id=self.new_id(),
            table_uuid=self.lake.table().uuid,
            stream=stream,
            source=TopicIdentity(cluster="c-1", topic=stream, topic_id=f"id-{stream}"),
            ranges=(OffsetRange(partition=partition, start=start, end=end),),
            files=self.write(stream, partition, start, end),
            **{"fresh": frozenset({0, 1, 2}), **options},
        )

    def merge(self, removed: Sequence[WrittenFile], stream: str = "orders") -> MergeCommit:
        """The commit that replaces files by one."""
        writer = self.files.writer(self.lake.table())
        return MergeCommit(
            commit_id=self.new_id(),
            table_uuid=self.lake.table().uuid,
            stream=stream,
            files=writer.put(writer.merge(removed)),
            removed=tuple(removed),
        )

    def member(self, change: Any) -> Member:
        """The change, ready to be handed over."""
        return Member(change=change, writer=self.files.writer(self.lake.table()))

    def commit(self, *changes: Any) -> list[Any]:
        """Commit these together; returns their results, exceptions as they are."""
        members = [self.member(change) for change in changes]
        self.committer.commit_all(members)
        return [member.result for member in members]

    def next(self, stream: str = "orders") -> dict[int, int]:
        """Partition to next offset, as in the table."""
        found = offsets_in(self.lake.table(), stream)
        return {} if found is None else dict(found.next)
