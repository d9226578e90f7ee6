"""What a fault through the gateway may change, beside what `Scenario` has."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Literal

from tests.campaign.scenario import Scenario

if TYPE_CHECKING:
    from tests.campaign.engine import Engine
    from tests.campaign.gateway_clients import Row
    from tests.campaign.gateway_process import Exchange, Gateway
    from tests.campaign.gateway_world import GatewaySim

Kind = Literal["keyed", "numbered", "plain"]
KINDS: tuple[Kind, ...] = ("keyed", "numbered", "plain")
GATEWAY_FAULTS: dict[int, type[ThroughGateway]] = {}
"""Number of the fault in shared/reliability.md -> its scenario through gateways."""
LOST_SHARE = 0.08
"""Share of the answers that clients do not get in every run, whatever its fault is."""
BAD_SHARE = 0.08
TOKEN_S = 900.0


class ThroughGateway(Scenario):
    """A fault through gateways; hooks are called by the world.

    Attributes:
        gateways: numbers of gateways with which it can happen.
        kinds: how clients repeat, by turns.
        bad_rows: share of the rows that the table does not take.
    """

    registry = GATEWAY_FAULTS
    sim: GatewaySim  # type: ignore[assignment]
    gateways: tuple[int, ...] = (1, 2)
    kinds: tuple[Kind, ...] = KINDS
    bad_rows: float = BAD_SHARE

    def engines(self, chance: random.Random) -> int:
        """No ingest engine: gateways take their place."""
        return 0

    def row(self, chance: random.Random, number: int) -> tuple[Row, bool]:
        """The next row, and whether the table takes it."""
        if chance.random() < self.bad_rows:
            return chance.choice(BAD)(number), False
        return {"id": number, "at": "2026-11-23T08:00:00Z"}, True

    def answer_lost(self, chance: random.Random, exchange: Exchange) -> bool:
        """Whether the client does not get the answer, whatever becomes of its request."""
        return chance.random() < LOST_SHARE

    def gateway_skew_ms(self, chance: random.Random) -> int:
        """How far off a gateway's clock is, in milliseconds."""
        return self.skew_ms(chance)

    def token_s(self, chance: random.Random) -> float:
        """How long the next token of a client counts, in seconds."""
        return TOKEN_S

    def denies(self, engine: Engine) -> bool:
        """Whether the catalog does not let a gateway in now."""
        return False

    def answering(self, process: Gateway, exchange: Exchange, status: int) -> None:
        """A gateway is about to answer a request."""

    def doomed(self, process: Gateway) -> None:
        """A gateway dies, some turns after it was decided."""


def _of(value: Any) -> Any:
    return lambda number: value(number)


BAD = (
    _of(lambda n: {"id": n, "at": "never"}),
    _of(lambda n: {"id": f"x{n}"}),
    _of(lambda n: {"id": n + 0.5}),
    _of(lambda n: {"at": "2026-11-23T08:00:00Z"}),
    _of(lambda n: {"id": None}),
    _of(lambda n: {"id": [n]}),
)
"""Rows that the table does not take; none has an id that another row has."""
