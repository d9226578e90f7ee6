"""What the readers of an ingestor say of themselves, as the controller reports it."""

from __future__ import annotations

import re

from tarn.core.control.report import Facts
from tarn.ingest.status import IngestorStatus, State, StatusRegistry, as_one

_END_OF_NAME = re.compile(r"[./]")


def ingestor_of(reader: str) -> str:
    """Name of the ingestor of a reader: `orders` of `orders/1`, `orders.shop.eu`, `orders.shop.eu/1`."""
    return _END_OF_NAME.split(reader, maxsplit=1)[0]


def facts_of(registry: StatusRegistry, ingestor: str) -> Facts:
    """The readers of an ingestor, summed up: the worst state, and the sums."""
    # What has no stream is no reader: a refused file (`orders.yaml`), or a pattern that matches nothing yet.
    mine = [
        status
        for name, status in registry.readers().items()
        if ingestor_of(name) == ingestor and (status.stream or name == ingestor)
    ]
    if not mine:
        return Facts()
    one: IngestorStatus = as_one(mine)
    lags = [status.lag for status in mine]
    return Facts(
        state=one.state.value,
        reason="" if one.state is State.RUNNING else one.reason or one.state.value,
        message=one.message,
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        rows=one.rows,
        bad_records=one.bad_records,
        commit_at_ms=one.commit_at_ms,
        snapshot_id=one.snapshot_id,
    )
