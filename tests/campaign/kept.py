"""Results of pure functions of the shipped code that are kept from one simulated process to the next.

A process computes them once, when it starts; in a simulation one starts every few dozen turns. What is kept
is frozen, and the same for the same arguments: nothing of a dead process lives on in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from unittest.mock import patch

import orjson

from tarn.adapters import table_files
from tarn.adapters.write_schema import WriteSchema, layout_of
from tarn.core import decode
from tarn.core.decode import parser_of
from tarn.core.parsing import Parser
from tarn.core.spec import FieldSpec, MessageFormat
from tarn.core.table_state import TableState

KEPT_MAX = 128
LAYOUT_OF = (
    *("schemas", "current-schema-id", "partition-specs", "default-spec-id"),
    *("sort-orders", "default-sort-order-id", "properties", "format-version"),
)
"""The parts of a table's metadata that its layout is made of."""


def layout(state: TableState, fields: Sequence[FieldSpec], *, trace: bool, table: str) -> WriteSchema:
    """See `layout_of`."""
    parts = {name: state.metadata[name] for name in LAYOUT_OF if name in state.metadata}
    return _layout(orjson.dumps(parts), tuple(fields), trace, table)


@lru_cache(KEPT_MAX)
def _layout(parts: bytes, fields: tuple[FieldSpec, ...], trace: bool, table: str) -> WriteSchema:
    return layout_of(TableState(orjson.loads(parts)), fields, trace=trace, table=table)


@lru_cache(KEPT_MAX)
def parser(fields: tuple[FieldSpec, ...], messages: MessageFormat) -> Parser:
    """See `parser_of`."""
    return parser_of(fields, messages)


@contextmanager
def kept() -> Iterator[None]:
    """Within the block the results are kept."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(table_files, "layout_of", layout))
        stack.enter_context(patch.object(decode, "parser_of", parser))
        yield
