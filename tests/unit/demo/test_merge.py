"""What a MERGE asks of Spark, noted by a DataFrame that runs nothing; what comes of it is tested on Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tarn_jobs.lake import Lake
from tarn_jobs.schema import SILVER
from tarn_jobs.statements import merge_silver


@dataclass
class Asked:
    """A source of a MERGE, a session and its settings: notes what it is asked for."""

    inserted: dict[str, Any] = field(default_factory=dict)
    settings: list[str] = field(default_factory=list)

    def alias(self, name: str) -> Asked:
        assert name == "s"
        return self

    def mergeInto(self, table: str, on: object) -> Asked:
        assert table == "tarn.silver.flights"
        return self

    def whenMatched(self, when: object) -> Asked:
        return self

    def whenNotMatched(self) -> Asked:
        return self

    def update(self, columns: dict[str, Any]) -> Asked:
        return self

    def insert(self, columns: dict[str, Any]) -> Asked:
        self.inserted = columns
        return self

    def merge(self) -> None:
        assert self.settings, "the position is set while it runs"

    @property
    def conf(self) -> Asked:
        return self

    def set(self, key: str, _: str) -> None:
        self.settings.append(key)

    def unset(self, key: str) -> None:
        self.settings.remove(key)


def test_a_row_that_is_new_sets_the_columns_of_the_jobs_alone() -> None:
    """All of the target's would be those that somebody added as well, which the source does not have."""
    asked: Any = Asked()
    Lake(asked, "tarn").merge(merge_silver((0, 1)), asked, {"tarn.position": "x"})
    assert tuple(asked.inserted) == SILVER.names
    assert asked.settings == []
