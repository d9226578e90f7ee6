"""Keys of repeated writes over HTTP are deleted once no gateway reads them, and nothing else by that rule."""

from __future__ import annotations

import pytest

from tarn.core.producers import PROPERTY
from tarn.core.write_keys import NEEDED_MS
from tarn.keeper import reaper as module
from tests.contract.keeper.reaping import GRACES, Clocked, Writer


def keys_of(lake: Clocked) -> list[str]:
    return sorted(key.rpartition("/")[2] for key in lake.keys("/metadata/write-keys-"))


def put(lake: Clocked, table: Writer, *names: str) -> None:
    for name in names:
        lake.store.put(f"{table.folder}/metadata/{name}", b"{}")


def test_keys_go_with_their_age_alone() -> None:
    lake = Clocked()
    table = lake.table(**{PROPERTY: "{}"})
    table.append()
    put(lake, table, "write-keys-a.json", "write-keys-a.segment.json", "other-keys-a.json")
    lake.wait(NEEDED_MS // 2)
    put(lake, table, "write-keys-b.json")
    reaper = lake.reaper()
    assert reaper.run_once().keys == 0
    lake.wait(NEEDED_MS // 2 - 1)
    assert reaper.run_once().keys == 0, "a millisecond before"
    lake.wait(module.KEYS_EVERY_MS)
    done = reaper.run_once()
    assert (done.keys, done.failed) == (2, {})
    assert done.deleted >= 2
    assert keys_of(lake) == ["write-keys-b.json"]
    lake.wait(NEEDED_MS)
    assert reaper.run_once().keys == 1
    assert keys_of(lake) == []
    assert lake.missing() == []
    assert lake.keys("other-keys-a.json"), "whatever else lies there stays"


def test_only_tables_that_the_gateway_writes_to_are_looked_through() -> None:
    lake = Clocked()
    ours, shared = lake.table(), lake.table("shared", **{PROPERTY: "{}", "gc.enabled": "false"})
    for table in (ours, shared):
        table.append()
        put(lake, table, "write-keys-a.json")
    lake.wait(NEEDED_MS)
    assert lake.reaper().run_once().keys == 0
    assert keys_of(lake) == ["write-keys-a.json"] * 2


def test_a_pass_deletes_no_more_than_so_many_and_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_PER_PASS_MAX", 3)
    lake = Clocked()
    table = lake.table(**{PROPERTY: "{}"})
    table.append()
    put(lake, table, *(f"write-keys-{number}.json" for number in range(5)))
    lake.wait(NEEDED_MS)
    reaper = lake.reaper()
    assert [reaper.run_once().keys for _ in range(3)] == [3, 2, 0]


def test_a_hold_and_a_clock_that_jumps_keep_them() -> None:
    lake = Clocked()
    table = lake.table(**{PROPERTY: "{}"})
    table.append()
    put(lake, table, "write-keys-a.json")
    reaper = lake.reaper()
    reaper.run_once()
    lake.now_ms += NEEDED_MS  # the store's clock alone
    lake.mono_ms += module.KEYS_EVERY_MS
    assert reaper.run_once().keys == 0
    lake.wait(GRACES.files_ms)
    assert keys_of(lake) == ["write-keys-a.json"]
