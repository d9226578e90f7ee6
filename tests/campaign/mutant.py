"""What a mutant is: a rule of the product that is taken out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tarn.core.offsets import OffsetMap
from tests.campaign.through import Through

Patches = Callable[[ExitStack], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A rule that is taken out.

    Attributes:
        name: short name.
        rule: what the product does without it.
        faults: the faults that must notice, each by itself.
        patches: takes the rule out until the stack is closed.
        seed: the first seed to try; a rare order of steps is found later than others.
        replicas: readers of each engine, or gateways, in the runs that must notice.
        through: what writes in them.
        always: whether it is tried in every run of the tests, and not in turn with the others.
    """

    name: str
    rule: str
    faults: tuple[int, ...]
    patches: Patches
    seed: int = 0
    replicas: int = 1
    through: Through = "ingest"
    always: bool = False


def mutated(*changes: tuple[Any, str, Any]) -> Patches:
    """Replaces names: owner, name, new value."""

    def apply(stack: ExitStack) -> None:
        for owner, name, value in changes:
            stack.enter_context(patch.object(owner, name, value))

    return apply


def any_range(
    table: Any, topic: Any, ranges: Any, *, fresh: Any = frozenset(), epochs: Any = None
) -> OffsetMap:
    """A batch goes on any base: what takes the place of `check_offsets`."""
    known = dict(table.next) if table is not None else {}
    return OffsetMap(source=topic, next=known | {r.partition: r.end for r in ranges})
