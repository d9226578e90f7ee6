"""Programs that write through the gateways, and the ledger of what they were answered.

`keyed` is the shipped writer of `tarn.client`, `numbered` counts its rows, `plain` can repeat nothing: it
gives a write up whose outcome it does not know.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarn.adapters.gateway_client import GatewayClient
from tarn.adapters.http_client import Answer, NoAnswerError, NotSentError
from tarn.client.writing import RowWriter, WriteLimits
from tarn.core.errors import OutcomeUnknownError, TarnError, UnavailableError
from tests.campaign.gateway_process import Exchange
from tests.campaign.gateway_scenario import Kind
from tests.support.lake import TABLE

if TYPE_CHECKING:
    from tests.campaign.gateway_world import GatewaySim

PAUSE_S, PAUSE_S_MAX = 0.05, 5.0
TRIES_MAX = 60
LATER = (429, 503)
"""Statuses that say: nothing of it was written, send it again."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What a gateway said about a write: 200, or 422 if it took no row.

    Attributes:
        accepted: number of rows in the table.
        rejected: indices of the others.
        repeated: whether an earlier request brought them in.
        snapshot_id: a snapshot that has them; None if there is none.
        versions: how many versions the table had when the client had the answer.
    """

    accepted: int | None
    rejected: tuple[int, ...] | None
    repeated: bool
    snapshot_id: int | None
    versions: int


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """A write of the ledger.

    Attributes:
        client: name of the client.
        kind: how it is repeated.
        rows: its rows.
        good: ids of those that the table takes, by index.
        key: its idempotency key; empty without.
        sequence: number of its first row, for a client that counts.
        answers: what gateways said about it, in the order in which the client had it.
        unknown: whether a request may have been carried out whose answer the client does not have.
        sent: number of requests.
    """

    client: str
    kind: Kind
    rows: list[Row]
    good: dict[int, int]
    key: str = ""
    sequence: int = 0
    answers: list[Answered] = field(default_factory=list)
    unknown: bool = False
    sent: int = 0

    @property
    def answered(self) -> bool:
        """Whether the client knows what became of it."""
        return bool(self.answers)

    @property
    def bad(self) -> tuple[int, ...]:
        """Indices of the rows that the table does not take."""
        return tuple(n for n in range(len(self.rows)) if n not in self.good)

    def __str__(self) -> str:
        return f"{self.client}, {self.kind}, ids {sorted(self.good.values())}"


class Client:
    """One program: it writes some times, each time until it is answered or gives up.

    Args:
        sim: the run.
        name: its name.
        kind: how it repeats.
    """

    def __init__(self, sim: GatewaySim, name: str, kind: Kind) -> None:
        self.sim = sim
        self.name = name
        self.kind = kind
        self.sequence = 0
        self.chance = random.Random(sim.chance.getrandbits(64))
        self.at = self.chance.randrange(sim.gateways)
        self.patience_s = self.chance.choice((1.0, 5.0, 45.0))
        self._token_until_s = 0.0

    # -- writes

    def live(self) -> None:
        """Write."""
        sim = self.sim
        try:
            for _ in range(self.chance.randrange(3, 7)):
                sim.rest(self.chance.random() * 0.3)
                entry = self.new_entry()
                self.write(entry)
                if not entry.answered and self.kind == "numbered":
                    return  # the next rows would not follow those before them
            sim.caught_up_s = sim.lake.clock.now_s
        finally:
            sim.clients_left -= 1
            sim.engines_left -= 1

    def new_entry(self) -> Entry:
        """A write of some rows, which is in the ledger before it is sent."""
        sim = self.sim
        rows: list[Row] = []
        good: dict[int, int] = {}
        for n in range(self.chance.choice((1, 1, 2, 3, 6))):
            sim.numbers += 1
            row, is_good = sim.scenario.row(self.chance, sim.numbers)
            rows.append(row)
            if is_good:
                good[n] = sim.numbers
        entry = Entry(client=self.name, kind=self.kind, rows=rows, good=good, sequence=self.sequence)
        if self.kind == "keyed":
            entry.key = f"{self.name}-{len(sim.entries)}"
        self.sequence += len(rows)
        sim.entries.append(entry)
        return entry

    def write(self, entry: Entry, *, repeats: bool = True) -> None:
        """Send a write until it is answered, or this client gives up; some once more."""
        self._written(entry)
        while repeats and entry.answered and self.kind != "plain" and self.chance.random() < 0.25:
            self._written(entry)

    def _written(self, entry: Entry) -> None:
        if self.kind == "keyed":
            self._by_writer(entry)
        else:
            self._by_hand(entry)

    def _by_writer(self, entry: Entry) -> None:
        """With the shipped writer."""
        sim = self.sim
        client = GatewayClient("http://gateway:8090", token=self.token, durability=sim.durability)
        adapter = client._http = Adapter(self, entry)  # type: ignore[assignment]
        made = RowWriter(
            table=TABLE,
            client=client,
            limits=WriteLimits(timeout_s=self.chance.choice((60.0, 60.0, 5.0))),
            clock=lambda: sim.lake.clock.now_s,
            sleep=sim.rest,
            chance=self.chance.random,
            new_key=lambda: entry.key,
        )
        try:
            found = made.send(entry.rows)
        except OutcomeUnknownError:
            entry.unknown = True
            return
        except UnavailableError:
            if adapter.unknown:  # not `entry.unknown`: others may send the same
                sim.problem(f"{entry}: the writer said that nothing was written, and did not know")
            return
        except TarnError as e:
            sim.problem(f"{entry}: the writer failed: {type(e).__name__}: {e.message}")
            return
        self.note(
            entry,
            Answered(
                accepted=found.accepted,
                rejected=tuple(sorted(found.rejected)) if found.accepted is not None else None,
                repeated=found.repeated,
                snapshot_id=found.snapshot_id,
                versions=len(sim.watch.versions),
            ),
        )

    def _by_hand(self, entry: Entry) -> None:
        pause_s = PAUSE_S
        for _ in range(TRIES_MAX):
            exchange = self.send(entry, entry_headers(entry), self._body(entry), fresh=False)
            if exchange is not None and exchange.status == 401:
                self._token_until_s = 0.0
                continue
            if exchange is not None and exchange.status in (200, 422):
                self.note_answer(entry, exchange)
                return
            if exchange is not None and exchange.status not in (*LATER, 504):
                self.sim.problem(f"{entry}: answered {exchange.status}: {exchange.answer[:300]!r}")
                return
            if self.kind == "plain" and entry.unknown:
                return
            self.sim.rest(pause_s * (0.5 + self.chance.random()))
            pause_s = min(2 * pause_s, PAUSE_S_MAX)

    @staticmethod
    def _body(entry: Entry) -> bytes:
        return json.dumps(entry.rows).encode()

    # -- requests

    def token(self, *, fresh: bool = False) -> str:
        """A token of the catalog, which ends some time."""
        now_s = self.sim.lake.clock.now_s
        if fresh or self._token_until_s <= now_s:
            self._token_until_s = now_s + self.sim.scenario.token_s(self.chance)
        return f"{self.name}/{self._token_until_s!r}"

    def send(
        self, entry: Entry, headers: dict[str, str], body: bytes, *, fresh: bool, at: int | None = None
    ) -> Exchange | None:
        """Send a request to one of the gateways, and wait for its answer.

        Returns:
            The exchange with its answer; None if there is none. `entry.unknown` says what that means.
        """
        sim = self.sim
        headers = {"authorization": f"Bearer {self.token(fresh=fresh)}", **headers}
        if at is None and self.chance.random() < 0.3:
            self.at = self.chance.randrange(sim.gateways)
        path = f"/v1/tables/{TABLE}/rows?durability={sim.durability}"
        exchange = Exchange(entry=entry, path=path, headers=headers, body=body)
        entry.sent += 1
        if not sim.connect(exchange, self.at if at is None else at):
            self.at = (self.at + 1) % sim.gateways
            return None
        lost = not sim.healing and sim.scenario.answer_lost(self.chance, exchange)
        sim.wait_for(lambda: exchange.over, self.patience_s)
        if exchange.status is None or lost:
            entry.unknown = True
            self.at = self.chance.randrange(sim.gateways)
            return None
        if exchange.status == 504:
            entry.unknown = True
        if exchange.status in LATER and sim.chance.random() < 0.5:
            self.at = self.chance.randrange(sim.gateways)
        return exchange

    def note_answer(self, entry: Entry, exchange: Exchange) -> None:
        """Enter an answer 200 or 422 into the ledger."""
        found = json.loads(exchange.answer)
        if "accepted" not in found:
            self.sim.problem(f"{entry}: answered {exchange.status}: {exchange.answer[:300]!r}")
            return
        rejected = found["rejected"]
        self.note(
            entry,
            Answered(
                accepted=found["accepted"],
                rejected=None if rejected is None else tuple(one["row"] for one in rejected),
                repeated=found["repeated"],
                snapshot_id=found.get("snapshot-id"),
                versions=len(self.sim.watch.versions),
            ),
        )

    def note(self, entry: Entry, answer: Answered) -> None:
        """Compare an answer with the rows, and with the answers before it; read the table now and then."""
        sim = self.sim
        right = (answer.accepted, answer.rejected) == (len(entry.good), entry.bad)
        if not right:
            sim.problem(
                f"{entry}: accepted {answer.accepted}, rejected {answer.rejected}; the table takes "
                f"{len(entry.good)}, not {entry.bad}"
            )
        if entry.answers and not answer.repeated and entry.good:
            sim.problem(f"{entry}: written, and answered as new again")
        if not entry.unknown and not entry.answers and answer.repeated and entry.sent == 1:
            sim.problem(f"{entry}: answered as a repeat, and sent once")
        entry.answers.append(answer)
        sim.answered(entry, answer)


def entry_headers(entry: Entry) -> dict[str, str]:
    """The headers of a write that is not sent by the shipped writer."""
    headers = {"content-type": "application/json"}
    if entry.kind == "numbered":
        headers |= {"tarn-producer": entry.client, "tarn-sequence": str(entry.sequence)}
    if entry.kind == "keyed":
        headers |= {"idempotency-key": entry.key, "content-type": "application/x-ndjson"}
    return headers


class Adapter:
    """Takes the place of the connections of the shipped client.

    Args:
        client: who sends.
        entry: what is sent.

    Attributes:
        uri: address of the server.
        unknown: whether a request of the client had no answer, or one that says that nothing is known.
    """

    def __init__(self, client: Client, entry: Entry) -> None:
        self._client = client
        self._entry = entry
        self.uri = "http://gateway:8090"
        self.unknown = False

    def send(self, method: str, path: str, *, body: bytes, headers: Mapping[str, str]) -> Answer:
        """See `tarn.adapters.http_client.HttpClient.send`."""
        entry, before = self._entry, self._entry.unknown
        entry.unknown = False
        sent = {name.lower(): value for name, value in headers.items()}
        try:
            exchange = self._client.send(entry, sent, body, fresh=False)
            if exchange is None and entry.unknown:
                self.unknown = True
                raise NoAnswerError("no answer")
            if exchange is None:
                raise NotSentError("nobody listens")
            assert exchange.status is not None
            self.unknown = self.unknown or exchange.status == 504
            fields = {name.title(): value for name, value in exchange.fields.items()}
            return Answer(status=exchange.status, body=exchange.answer, headers=fields)
        finally:
            entry.unknown = entry.unknown or before

    def close(self) -> None:
        """Nothing is open."""
