"""All faults of the campaign, by their number in the list of faults."""

from __future__ import annotations

from tests.campaign import answers, kills, streams, upkeep, writers
from tests.campaign.scenario import FAULTS

MODULES = (kills, answers, writers, streams, upkeep)
NUMBERS = tuple(sorted(FAULTS))

__all__ = ["FAULTS", "MODULES", "NUMBERS"]
