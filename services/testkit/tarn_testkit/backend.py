"""What a lake is made of, whether it is a running stack or embedded in the test's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from tarn.core.control.registry import SpecRegistry
from tarn_testkit.messages import Message

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from tarn_testkit.proxy import Proxy

Offsets = Mapping[int, int]
"""Partition to the offset of a message."""


class Topics(Protocol):
    """The topics of the lake's log."""

    def ensure(self, topic: str, *, partitions: int) -> bool:
        """Create a topic if there is none of this name; whether it was created."""

    def delete(self, topic: str) -> None:
        """Delete a topic with its messages; nothing happens if there is none of this name."""

    def produce(self, topic: str, messages: Sequence[Message]) -> Offsets:
        """Append messages; the offset of the last one of each partition that got any."""


class Backend(Protocol):
    """A lake's parts."""

    @property
    def catalog(self) -> Catalog:
        """The catalog, as pyiceberg has it."""

    @property
    def topics(self) -> Topics:
        """Its topics."""

    @property
    def specs(self) -> SpecRegistry:
        """Its declared ingestors."""

    @property
    def env(self) -> Mapping[str, str]:
        """The values of `scripts/tarn env`, for clients that the kit does not have."""

    def wake(self) -> None:
        """Have the controller of the ingestors look now; it looks by itself every few seconds."""

    def query(self, sql: str) -> list[list[Any]]:
        """The rows of a statement, by Trino."""

    def cursor(self) -> Any:
        """A cursor of Trino."""

    def spark(self) -> SparkSession:
        """A session of Spark Connect, the same at each call."""

    def kill(self, service: str, *, timeout_s: float) -> None:
        """Kill a service's process, and wait until the service is healthy again."""

    def freeze(self, service: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """Stop a service's processes for the duration of the block, and wait until it is healthy again."""

    def proxy(self, service: str) -> AbstractContextManager[Proxy]:
        """A proxy before `catalog` or `gateway` for the duration of the block."""

    def close(self) -> None:
        """End what was started."""
