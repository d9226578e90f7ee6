"""Replicas: several readers of one topic, which share its partitions. They are one stream, one offset map.

A replica reads, decodes and writes for itself; it knows its number, and the table, and nothing of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One of the readers of a topic.

    Attributes:
        index: its number, from 0.
        count: number of readers.
    """

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        """Reject a number that no reader has: its partitions would be read twice, or never."""
        if not 0 <= self.index < self.count:
            raise ValueError(f"replica {self.index} of {self.count}; they are numbered from 0")

    def name(self, ingestor: str) -> str:
        """Name of the reader; that of the ingestor if it is the only one."""
        return ingestor if self.count == 1 else f"{ingestor}/{self.index}"

    def own(self, by_partition: Mapping[int, V]) -> dict[int, V]:
        """What belongs to the partitions of this reader: every `count`-th one."""
        return {p: value for p, value in by_partition.items() if p % self.count == self.index}
