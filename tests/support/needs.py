"""Which service uses which, per docs/reference.md: the basis of the network tests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
NONE = "\u2013"


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """A row of the table `Who uses whom`.

    Attributes:
        uses: `service:port` of the services that it calls.
        network: the network that it is reached in, or empty if nothing reaches it.
        ports: the ports that it listens on in that network.
    """

    uses: frozenset[str]
    network: str
    ports: frozenset[int]

    @property
    def servers(self) -> frozenset[str]:
        """The services that it calls."""
        return frozenset(address.partition(":")[0] for address in self.uses)


def needs() -> dict[str, Needs]:
    """Service -> what it uses and where it is reached itself."""
    section = REFERENCE.read_text(encoding="utf-8").partition("## Who uses whom")[2].partition("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| (?!service|---)(.*) \|$", section, re.MULTILINE):
        if line.startswith("---"):
            continue
        name, uses, network, ports = (cell.strip() for cell in line.split("|"))
        found[name] = Needs(
            uses=frozenset(() if uses == NONE else uses.split(", ")),
            network="" if network == NONE else network,
            ports=frozenset(() if ports == NONE else (int(port) for port in ports.split(", "))),
        )
    assert len(found) > 5, "the table `Who uses whom` is not in docs/reference.md"
    return found
