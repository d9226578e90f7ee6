"""Table sizes in `tarn status`: as the reaper measured them, or not measured yet."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import orjson
import pytest
from rich.console import Console

from tarn.adapters.store import MemoryStore
from tarn.cli.ports import Sizes, TableFacts
from tarn.cli.render import print_status
from tarn.cli.status import Status, as_data
from tarn.core.errors import CorruptStateError
from tarn.core.reap import MEASURED_KEY
from tarn.keeper.measured import Measured

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
ENTRY = {"name": "ns.t", "objects": 7, "bytes": 5_000, "live": 3_000, "to-be-removed": 500, "at-ms": 0}


def measured(entry: object) -> Measured:
    store = MemoryStore()
    store.put(MEASURED_KEY, orjson.dumps({"format": 1, "tables": {"u": entry}}))
    return Measured(store)


def test_what_the_reaper_measured_is_live_history_and_what_goes() -> None:
    (found,) = measured(ENTRY).sizes().items()
    at = datetime.fromtimestamp(0, UTC)
    assert found == ("ns.t", Sizes(objects=7, live=3_000, history=1_500, to_be_removed=500, at=at))
    assert measured({**ENTRY, "live": None}).sizes()["ns.t"].history == 4_500
    assert measured({**ENTRY, "live": 9_000}).sizes()["ns.t"].history == 0, (
        "summaries are not to be relied on"
    )
    assert Measured(MemoryStore()).sizes() == {}


def test_what_cannot_be_read_is_told() -> None:
    with pytest.raises(CorruptStateError, match=r"measured/tables\.json cannot be read"):
        measured({"name": "x"}).sizes()


def test_the_page_shows_it_and_the_data_has_it() -> None:
    facts = [
        TableFacts(
            name=name, format_version=2, rows=1, data_files=1, delete_files=0, snapshots=1, last_commit=AT
        )
        for name in ("ns.t", "ns.new")
    ]
    seen = Status(at=AT, services=(), tables=tuple(facts), sizes=measured(ENTRY).sizes())
    out = io.StringIO()
    print_status(seen, Console(file=out, width=160), Console(file=io.StringIO()))
    rows = {line.split()[0]: line for line in out.getvalue().splitlines() if line.strip()}
    assert "3.0 kB" in rows["ns.t"]
    assert "1.5 kB" in rows["ns.t"]
    assert "500 B" in rows["ns.t"]
    assert rows["ns.new"].count("?") == 3
    data = json.loads(json.dumps(as_data(seen)))
    assert data["tables"][0]["bytes"]["to_be_removed"] == 500
    assert data["tables"][1]["bytes"] is None
