"""One round through two gateways on the real stack: a table, several writers, a fault; exact counts.

Each lane has two containers of the service `gateway`. The first one reaches the catalog through the lane's
proxy. Writers know both, and repeat at any of them.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import requests

from tarn.adapters.gateway_client import GatewayClient, Receipt
from tarn.client.writing import RowWriter, WriteLimits
from tarn.core.errors import OutcomeUnknownError, TarnError, UnavailableError
from tarn.core.producers import next_sequence
from tarn.core.table_state import TableState
from tarn.gateway.rows_commit import STREAM, book_in
from tarn.ingest.batch_commit import offsets_in
from tests.campaign.real_faults import RealFault
from tests.campaign.real_gateway_faults import REAL_GATEWAY
from tests.campaign.real_rig import Lane
from tests.campaign.results import Counts, ended
from tests.support.stack import eventually, free_ports

GATEWAYS = 2
KINDS = ("keyed", "numbered", "plain")
WRITERS = 6
WRITES = 20
ROWS = 4
PAUSE_S = 0.35
DOWN_S = 20.0
FROZEN_S = 15.0
READ_TIMEOUT_S = 5.0
"""How long clients of a round wait for an answer: not as long as a gateway stands still."""
GIVEN_UP_S = 120.0
UP_WITHIN_S = 90.0
LOST_SHARE = 0.08
LATE_WITHIN_S = 120.0


@dataclass(slots=True, eq=False, kw_only=True)
class Sent:
    """A write of the ledger.

    Attributes:
        good: ids of those of its rows that the table takes.
        bad: number of the others.
        receipts: what was answered.
        unknown: whether a request of it may have been carried out without an answer.
    """

    good: list[int]
    bad: int
    receipts: list[Receipt] = field(default_factory=list)
    unknown: bool = False


class Doors:
    """Both gateways as one client: each request goes to one of them, and some answers are lost.

    Args:
        round_: the round.
        chance: where requests go.
    """

    def __init__(self, round_: GatewayRound, chance: random.Random) -> None:
        self._round = round_
        self._chance = chance
        self.token = round_.token
        self.clients = [GatewayClient(uri, token=self.token) for uri in round_.uris]

    def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        """See `GatewayClient.post`."""
        client = self._chance.choice(self.clients)
        if self._round.number == 11:
            found = self._twice(table, body, kind, key)
        else:
            found = client.post(table, body, kind=kind, key=key)
        if self._chance.random() < LOST_SHARE:
            raise OutcomeUnknownError("the answer is lost on purpose")
        return found

    def _twice(self, table: str, body: bytes, kind: str, key: str) -> Receipt:
        with ThreadPoolExecutor(GATEWAYS) as pool:
            asked = [pool.submit(one.post, table, body, kind=kind, key=key) for one in self.clients]
            errors = [error for one in asked if (error := one.exception()) is not None]
        if errors:
            # One of them may have taken it.
            raise OutcomeUnknownError(f"one of both did not answer: {errors[0]}")
        first, other = (one.result() for one in asked)
        # A write of bad rows alone makes no commit: nothing of it can be there twice.
        if first.accepted and not first.repeated and not other.repeated:
            self._round.problems.append(f"both gateways answered {key} as new")
        self._round.twins += 1
        return first

    def close(self) -> None:
        """Close idle connections."""
        for client in self.clients:
            client.close()


class Tokens:
    """Tokens of the command line's principal.

    Args:
        catalog: base URL of the catalog.
        credential: `client_id:client_secret`.
    """

    def __init__(self, catalog: str, credential: str) -> None:
        self._catalog = catalog
        self._id, _, self._secret = credential.partition(":")
        self._token = ""

    def __call__(self, *, fresh: bool = False) -> str:
        """See `tarn.adapters.gateway_client.Token`."""
        if fresh or not self._token:
            form = {
                "grant_type": "client_credentials",
                "client_id": self._id,
                "client_secret": self._secret,
            }
            try:
                answer = requests.post(f"{self._catalog}/v1/oauth/tokens", data=form, timeout=30)
                answer.raise_for_status()
            except requests.exceptions.RequestException as e:
                raise UnavailableError(f"no token: {e}") from e
            self._token = str(answer.json()["access_token"])
        return self._token


class GatewayRound:
    """One seed of one fault.

    Args:
        lane: where to run it.
        gateways: number of gateways; two.
        number: number of the fault.
        seed: the seed.
    """

    def __init__(self, lane: Lane, gateways: int, number: int, seed: int) -> None:
        assert gateways == GATEWAYS
        self.lane = lane
        self.rig = lane.rig
        self.env = lane.rig.env
        self.fault: RealFault = REAL_GATEWAY[number]
        self.number = number
        self.seed = seed
        self.chance = random.Random(f"real gateway/{number}/{seed}")
        self.name = f"g{number}_s{seed}_{int(time.time())}"
        self.table = f"bronze.{self.name}"
        self.containers = lane.gateways(GATEWAYS)
        # One for all writers: the proxy breaks what gateways ask about a token too, every 5 s for each.
        self.token = Tokens(self.env["TARN_CATALOG_URI"], self.env["TARN_CATALOG_CREDENTIAL"])
        self.uris: list[str] = []
        self.sent: list[Sent] = []
        self.ends: dict[str, int] = {}
        self.happened = 0
        self.twins = 0
        self.problems: list[str] = []
        self.fed = threading.Event()
        self._lock = threading.Lock()
        self._numbers = 0

    def run(self) -> tuple[Counts, float]:
        """Run it; its counts, and the seconds that it took."""
        began_s = time.monotonic()
        counts = Counts(fault=self.number)
        try:
            self._start()
            feeder = threading.Thread(target=self._feed, daemon=True)
            feeder.start()
            time.sleep(self.chance.uniform(0.5, 2.0))
            self.lane.plan(*self._plan())
            if self.fault.action:
                getattr(self, self.fault.action)()
            over_s = time.monotonic()
            feeder.join(GIVEN_UP_S + 120)
            if not self.fed.is_set():
                raise AssertionError("the writers did not end")
            if self.fault.plan:
                self.happened += len(self.lane.noted("done"))
            self.lane.end_plan()
            self._await_late()
            self._judge(counts)
            if self.happened:
                counts.heal_s.append(round(time.monotonic() - over_s, 2))
        except Exception as e:  # noqa: BLE001 - a round that cannot end is a finding
            self.problems.append(f"{type(e).__name__}: {e}")
        finally:
            logs = [self.rig.last_lines(one) for one in self.containers]
            for name in self.containers:
                self.rig.docker("rm", "-f", name, check=False)
        return ended(
            counts,
            seed=self.seed,
            problems=self.problems,
            logs=logs,
            happened=self.happened,
            began_s=began_s,
        )

    # -- parts

    def _start(self) -> None:
        from pyiceberg.schema import Schema
        from pyiceberg.types import LongType, NestedField, StringType

        self.lane.plan()
        ports = list(free_ports([f"{n}" for n in range(GATEWAYS)]).values())
        self.uris = [f"http://127.0.0.1:{port}" for port in ports]
        for number, (name, port) in enumerate(zip(self.containers, ports, strict=True)):
            through = ("-e", f"TARN_CATALOG_URI=http://{self.lane.proxy}:8181") if number == 0 else ()
            self.rig.start(
                name,
                *("-p", f"127.0.0.1:{port}:8090", "-e", "TARN_GATEWAY_LISTEN=0.0.0.0", *through, "gateway"),
            )
        lake = self.rig.lake()
        with contextlib.suppress(Exception):
            lake.create_namespace("bronze")
        lake.create_table(
            self.table,
            Schema(
                NestedField(1, "id", LongType(), required=True),
                NestedField(2, "text", StringType(), required=False),
            ),
        )
        for uri in self.uris:
            eventually(
                lambda uri=uri: _ready(uri),  # type: ignore[misc]
                timeout_s=UP_WITHIN_S,
                what=f"the gateway at {uri} is ready",
            )

    def _plan(self) -> list[str]:
        lines = list(self.fault.plan)
        if len(lines) > 1:
            self.chance.shuffle(lines)
        return lines

    def _feed(self) -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            asked = [
                pool.submit(self._write, number, random.Random(f"{self.seed}/{number}"))
                for number in range(WRITERS)
            ]
            for one in asked:
                if (error := one.exception()) is not None:
                    self.problems.append(f"a writer ended: {type(error).__name__}: {error}")
        self.fed.set()

    def _write(self, number: int, chance: random.Random) -> None:
        doors = Doors(self, chance)
        kind = KINDS[number % len(KINDS)] if self.number != 11 else "keyed"
        keyed = RowWriter(
            table=self.table, client=doors, limits=WriteLimits(timeout_s=GIVEN_UP_S), chance=chance.random
        )
        sequence = 0
        for at in range(WRITES):
            time.sleep(PAUSE_S * (0.5 + chance.random()))
            rows, entry = self._rows(chance)
            try:
                if kind == "keyed":
                    key = f"{self.name}-{number}-{at}"
                    self._note(entry, keyed.send(rows, key=key))
                    if chance.random() < 0.2:
                        self._note(entry, keyed.send(rows, key=key))
                else:
                    producer = f"w{number}" if kind == "numbered" else ""
                    self._by_hand(doors, entry, rows, producer, sequence, chance)
            except (UnavailableError, OutcomeUnknownError) as e:
                entry.unknown = entry.unknown or isinstance(e, OutcomeUnknownError)
                if kind == "numbered":
                    self.problems.append(f"a numbered write was not answered: {e}")
                    return
            except TarnError as e:
                self.problems.append(f"a write was refused: {type(e).__name__}: {e}")
                return
            sequence += len(rows)
            if kind == "numbered":
                with self._lock:
                    self.ends[f"w{number}"] = sequence

    def _rows(self, chance: random.Random) -> tuple[list[dict[str, Any]], Sent]:
        share = 0.5 if self.number == 16 else 0.05
        rows: list[dict[str, Any]] = []
        entry = Sent(good=[], bad=0)
        with self._lock:
            first = self._numbers
            self._numbers += ROWS
            self.sent.append(entry)
        for one in range(first, first + ROWS):
            if chance.random() < share:
                rows.append({"id": f"x{one}"})
                entry.bad += 1
            else:
                rows.append(self.row(one))
                entry.good.append(one)
        return rows, entry

    def row(self, number: int) -> dict[str, Any]:
        """A row that the table takes."""
        return {"id": number, "text": f"row {number}"}

    def _note(self, entry: Sent, found: Receipt) -> None:
        entry.receipts.append(found)
        if found.accepted is not None and found.accepted != len(entry.good):
            self.problems.append(f"accepted {found.accepted} of {entry}")

    def _by_hand(
        self,
        doors: Doors,
        entry: Sent,
        rows: list[dict[str, Any]],
        producer: str,
        sequence: int,
        chance: random.Random,
    ) -> None:
        """Send rows that are numbered, or that cannot be repeated.

        Raises:
            OutcomeUnknownError: it is not known whether they are in the table.
            UnavailableError: they are not.
        """
        headers = {"content-type": "application/json"}
        if producer:
            headers |= {"tarn-producer": producer, "tarn-sequence": str(sequence)}
        until_s = time.monotonic() + GIVEN_UP_S
        pause_s = 0.05
        while True:
            uri = chance.choice(self.uris)
            try:
                answer = requests.post(
                    f"{uri}/v1/tables/{self.table}/rows",
                    data=json.dumps(rows),
                    headers={"authorization": f"Bearer {doors.token()}", **headers},
                    timeout=(3.0, READ_TIMEOUT_S),
                )
                status = answer.status_code
            except requests.exceptions.ConnectTimeout:
                status = 503
            except requests.exceptions.RequestException as e:
                # A refused connection took nothing; any other one may have.
                status = 503 if "refused" in str(e) else 504
            if status == 401:
                doors.token(fresh=True)
            elif status in (200, 422):
                lost = chance.random() < LOST_SHARE
                if not lost:
                    found = answer.json()
                    rejected = {one["row"]: one["reason"] for one in found["rejected"] or ()}
                    self._note(
                        entry,
                        Receipt(accepted=found["accepted"], rejected=rejected, repeated=found["repeated"]),
                    )
                    return
                entry.unknown = True
            elif status not in (429, 503, 504):
                raise AssertionError(f"answered {status}: {answer.text[:300]}")
            entry.unknown = entry.unknown or status == 504
            if entry.unknown and not producer:
                raise OutcomeUnknownError("no answer to a write that cannot be repeated")
            if time.monotonic() > until_s:
                raise UnavailableError(f"not taken within {GIVEN_UP_S:g} s")
            time.sleep(pause_s * (0.5 + chance.random()))
            pause_s = min(2 * pause_s, 2.0)

    def _await_late(self) -> None:
        """Wait until what the proxy held back has arrived."""
        held = [line for line in self.lane.noted("done") if line.split()[0] in ("late", "slow")]
        if held:
            eventually(
                lambda: len(self.lane.noted("landed")) >= len(held),
                timeout_s=LATE_WITHIN_S,
                what="late requests",
            )

    def _judge(self, counts: Counts) -> None:
        """Compare the table with the ledger."""
        time.sleep(2.0)  # what a killed gateway sent may still be on its way
        ids, state = self.read()
        found = Counter(ids)
        counts.rows = found.total()
        known = {one for entry in self.sent for one in entry.good}
        counts.doubled = sum(count - 1 for count in found.values()) + len(found.keys() - known)
        for entry in self.sent:
            there = {min(found[one], 1) for one in entry.good}
            if entry.receipts:
                counts.lost += sum(not found[one] for one in entry.good)
            elif not entry.unknown and there == {1}:
                self.problems.append(f"answered as not written, and there: {entry.good}")
            elif len(there) > 1:
                self.problems.append(f"a part of a write is there: {entry.good}")
        if counts.lost or counts.doubled:
            self.problems.append(f"{counts.lost} lost, {counts.doubled} doubled of {len(known)}")
        book, offsets = book_in(state), offsets_in(state, STREAM)
        for producer, end in self.ends.items():
            name = next((name for name in book.producers if name.endswith(f"/{producer}")), None)
            at = None if name is None else next_sequence(book, offsets, name)
            if at != end:
                self.problems.append(f"producer {producer} has sent {end} rows, the table's next one is {at}")

    def read(self) -> tuple[list[int], TableState]:
        """The ids of the table's rows, and its version."""
        table = self.rig.lake().load_table(self.table)
        ids = table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        return ids, TableState(json.loads(table.metadata.model_dump_json(by_alias=True)))

    # -- actions

    def _kill(self, container: str) -> None:
        self.rig.docker("kill", "--signal", "KILL", container)
        self.happened += 1
        time.sleep(self.chance.uniform(0.1, 1.0))
        self.rig.docker("start", container)

    def kill_over_reply(self) -> None:
        """Let the proxy take the answer of a commit, and kill the gateway over it."""
        for _ in range(2):
            self.lane.plan("reply 1")
            eventually(lambda: self.lane.noted("done"), timeout_s=60, what="a commit", pause_s=0.02)
            self._kill(self.containers[0])
            if self.fed.is_set():
                return

    def kill_one(self) -> None:
        """Kill the first gateway twice."""
        for _ in range(2):
            time.sleep(self.chance.uniform(0.5, 2.0))
            self._kill(self.containers[0])

    def kill_often(self) -> None:
        """Kill both, by turns, soon after they began to work."""
        for number in range(6):
            time.sleep(self.chance.uniform(0.3, 2.0))
            self._kill(self.containers[number % GATEWAYS])

    def freeze_gateway(self) -> None:
        """Freeze the first gateway, while the other one goes on."""
        before = sum(bool(entry.receipts) for entry in self.sent)
        self.rig.pause(self.containers[0])
        try:
            time.sleep(FROZEN_S)
            self.happened += sum(bool(entry.receipts) for entry in self.sent) > before
        finally:
            self.rig.docker("unpause", self.containers[0])

    def wait_for_twins(self) -> None:
        """Each write goes to both gateways: count those that both answered."""
        self.fed.wait(GIVEN_UP_S + 60)
        self.happened += self.twins

    def stop_store(self) -> None:
        """Kill or freeze the store for a while."""
        word = ("kill", "pause")[self.seed % 2]
        container = self.rig.stack.container("minio")
        if word == "pause":
            self.rig.pause(container)
        else:
            self.rig.docker("kill", container)
        self.happened += 1
        time.sleep(DOWN_S)
        self.rig.docker("unpause" if word == "pause" else "start", container)


def _ready(uri: str) -> bool:
    try:
        return requests.get(f"{uri}/health?ready", timeout=5).status_code == 200
    except requests.exceptions.RequestException:
        return False
