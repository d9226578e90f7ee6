"""Which service uses which, per docs/reference.md: the basis of the network tests."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.reference import table, words


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
    found = {
        row["service"]: Needs(
            uses=frozenset(words(row["uses"])),
            network="".join(words(row["reached in"])),
            ports=frozenset(int(port) for port in words(row["at"])),
        )
        for row in table("Who uses whom")
    }
    assert len(found) > 5, "the table `Who uses whom` is not in docs/reference.md"
    return found
