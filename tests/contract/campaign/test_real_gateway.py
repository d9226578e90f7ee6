"""A real round's writers and its ledger, on gateways over sockets in this process, without containers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tarn.core.table_state import TableState
from tests.campaign import real_gateway
from tests.campaign.real_gateway import GatewayRound
from tests.campaign.results import Counts
from tests.support.gateway import TABLE, Gateway, World, row

NO_GATEWAYS = SimpleNamespace(noted=lambda _: [], plan=lambda *_: None, end_plan=lambda: None)


class Here(GatewayRound):
    """A round on gateways of this process; one of them dies and comes again."""

    def __init__(self, world: World, number: int) -> None:
        env = {"TARN_CATALOG_URI": world.catalog_url, "TARN_CATALOG_CREDENTIAL": world.credentials["admin"]}
        rig = SimpleNamespace(env=env, docker=lambda *_, **__: "", last_lines=lambda _: "")
        lane: Any = SimpleNamespace(rig=rig, gateways=lambda _: ["one", "two"], **vars(NO_GATEWAYS))
        super().__init__(lane, 2, number, 1)
        self.table = TABLE
        self._world = world
        self._made: list[Gateway] = []

    def _start(self) -> None:
        self._made = [self._world.gateway() for _ in range(2)]
        self.uris = [one.url for one in self._made]

    def kill_one(self) -> None:
        """Let a gateway die."""
        self._made[0].stop(drain=False)
        self.happened += 1
        self.uris[0] = self._world.gateway().url

    def row(self, number: int) -> dict[str, Any]:
        return row(number)

    def read(self) -> tuple[list[int], TableState]:
        state = self._world.lake.table()
        return [one["id"] for one in self._world.lake.rows(state=state)], state


@pytest.mark.parametrize("number", [11, 16])
def test_a_round_counts_what_its_writers_sent(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(real_gateway, "WRITES", 4)
    monkeypatch.setattr(real_gateway, "PAUSE_S", 0.05)
    with ExitStack() as stack:
        made = Here(World(tmp_path, stack), number)
        counts, _ = made.run()
        assert counts.problems == []
        assert (counts.seeds, counts.lost, counts.doubled) == ([1], 0, 0)
        assert counts.rows > 10
        # Control: a ledger that says something else.
        entry = next(one for one in made.sent if one.good and one.receipts)
        entry.good[0] = 10**6
        wrong = Counts(fault=number)
        made._judge(wrong)
        assert (wrong.lost, wrong.doubled) == (1, 1)
