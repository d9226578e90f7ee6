"""What writes in a run."""

from __future__ import annotations

from typing import Literal

Through = Literal["ingest", "gateway", "log"]
"""Ingest engines, gateways, or gateways with `durability=log`."""
UNITS: dict[Through, str] = {"ingest": "readers", "gateway": "gateways", "log": "gateways"}
"""What the counts of a result are by: readers of each ingest engine, or gateways."""
