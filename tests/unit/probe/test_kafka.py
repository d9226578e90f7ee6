"""The minimal broker connection: its login per the RFC's own example, and every way it can be refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from tarn.adapters.kafka_login import ANONYMOUS, Login, require_login
from tarn.core.errors import UnauthenticatedError
from tarn.probe.kafka import Broker, Reader, RefusedError, Scram

PASSWORD = "a password"
SALT = b"0123456789abcdef"


def test_the_example_of_rfc_7677() -> None:
    scram = Scram("user", "pencil", "rOprNGfwEbeRWgbNEkqO", hash_name="sha256")
    assert scram.first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert scram.answer(challenge) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert scram.is_servers(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert not scram.is_servers(b"v=AAAATRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_name_may_hold_the_separators() -> None:
    assert Scram("a=b,c", "x", "n", hash_name="sha512").first == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    "challenge",
    [b"r=other,s=AAAA,i=4096", b"r=mine,s=AAAA,i=4096", b"r=mine+,s=AAAA,i=0", b"r=mine+,s=AAAA,i=1000001"],
)
def test_a_challenge_that_cannot_be_right_is_refused(challenge: bytes) -> None:
    with pytest.raises(RefusedError, match="challenge cannot be right"):
        Scram("user", "x", "mine", hash_name="sha512").answer(challenge)


def test_a_server_that_sent_no_challenge_proves_nothing() -> None:
    assert not Scram("user", "x", "n", hash_name="sha512").is_servers(b"v=")


class FakeBroker:
    """Fake broker, written from the RFC and the protocol guide: one connection, one user.

    Args:
        mechanisms: the SASL mechanisms that it offers.
        knows: the password that it expects.
        honest: whether it proves that it knows the password.
    """

    def __init__(self, *, mechanisms: tuple[str, ...] = ("SCRAM-SHA-512",), knows: str, honest: bool) -> None:
        self._mechanisms, self._knows, self._honest = mechanisms, knows, honest
        self.judged: list[bool] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(40)
        with connection:
            step, first, nonce = 0, "", ""
            while request := self._request(connection):
                api, body = request
                if api == 17:
                    name = Reader(body).text()
                    offered = b"".join(struct.pack(">h", len(m)) + m.encode() for m in self._mechanisms)
                    code = 0 if name in self._mechanisms else 33
                    self._answer(connection, struct.pack(">hi", code, len(self._mechanisms)) + offered)
                elif step == 0:
                    first = Reader(body).blob().decode().removeprefix("n,,")
                    nonce = first.partition("r=")[2] + "+servers"
                    challenge = f"r={nonce},s={base64.b64encode(SALT).decode()},i=4096"
                    self._accept(connection, challenge.encode())
                    step = 1
                else:
                    self._judge(connection, first, challenge, Reader(body).blob().decode())

    def _judge(self, connection: socket.socket, first: str, challenge: str, final: str) -> None:
        bare, _, proof = final.partition(",p=")
        signed = f"{first},{challenge},{bare}".encode()
        salted = hashlib.pbkdf2_hmac("sha512", self._knows.encode(), SALT, 4096)
        key = hmac.digest(salted, b"Client Key", "sha512")
        signature = hmac.digest(hashlib.sha512(key).digest(), signed, "sha512")
        expected = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self.judged.append(base64.b64decode(proof) == expected)
        if not self.judged[-1]:
            told = b"invalid credentials"
            self._answer(connection, struct.pack(f">hh{len(told)}si", 58, len(told), told, 0))
            return
        servers = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), signed, "sha512")
        self._accept(connection, b"v=" + base64.b64encode(servers if self._honest else b"0" * 64))

    def _accept(self, connection: socket.socket, message: bytes) -> None:
        self._answer(connection, struct.pack(f">hhi{len(message)}s", 0, -1, len(message), message))

    def _answer(self, connection: socket.socket, body: bytes) -> None:
        connection.sendall(struct.pack(">ii", len(body) + 4, 1) + body)

    def _request(self, connection: socket.socket) -> tuple[int, bytes] | None:
        head = connection.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return None
        content = connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
        api, _, _, name = struct.unpack_from(">hhih", content)
        return api, content[10 + name :]


@pytest.fixture
def fake() -> Iterator[Callable[..., FakeBroker]]:
    made: list[FakeBroker] = []

    def make(**options: object) -> FakeBroker:
        made.append(FakeBroker(**{"knows": PASSWORD, "honest": True, **options}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for broker in made:
        broker.close()


def test_who_knows_the_password_gets_in(fake: Callable[..., FakeBroker]) -> None:
    broker = fake()
    require_login(broker.address, Login(user="cli", password=PASSWORD).options())
    assert broker.judged == [True]


def test_a_wrong_password_is_told_with_the_user_and_what_to_do(fake: Callable[..., FakeBroker]) -> None:
    broker = fake()
    with pytest.raises(UnauthenticatedError) as caught:
        require_login(broker.address, Login(user="cli", password="not it").options())
    assert caught.value.fields == {"address": broker.address, "user": "cli"}
    for part in (broker.address, "user cli", "invalid credentials", "restart kafka", "scripts/tarn env"):
        assert part in caught.value.message
    assert "not it" not in caught.value.message


def test_a_server_that_does_not_know_the_password_is_not_trusted(fake: Callable[..., FakeBroker]) -> None:
    with pytest.raises(UnauthenticatedError, match="does not know the password of cli"):
        require_login(fake(honest=False).address, Login(user="cli", password=PASSWORD).options())


def test_a_broker_that_takes_other_ways_names_them(fake: Callable[..., FakeBroker]) -> None:
    with pytest.raises(UnauthenticatedError, match="takes PLAIN, GSSAPI and not SCRAM-SHA-512"):
        require_login(
            fake(mechanisms=("PLAIN", "GSSAPI")).address, Login(user="cli", password=PASSWORD).options()
        )


def test_who_does_not_answer_is_left_to_the_client() -> None:
    options = Login(user="cli", password=PASSWORD).options()
    with socket.socket() as taken:  # bound but not listening: refused
        taken.bind(("127.0.0.1", 0))
        require_login(f"127.0.0.1:{taken.getsockname()[1]},no-port,:x", options, timeout_s=1)
    require_login("127.0.0.1:1", ANONYMOUS.options())
    require_login("127.0.0.1:1", {})
    assert ANONYMOUS.options() == {"security_protocol": "PLAINTEXT"}


def test_a_peer_that_is_no_broker_is_told(fake: Callable[..., FakeBroker]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def web_server() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=web_server)
    thread.start()
    with (
        Broker("127.0.0.1", listener.getsockname()[1], timeout_s=40) as broker,
        pytest.raises(RuntimeError, match="not a Kafka broker"),
    ):
        broker.ask(3, 1, b"")
    thread.join(5)
    listener.close()
