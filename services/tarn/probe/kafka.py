"""A bare connection to a Kafka broker: requests as bytes, and the log-in by SCRAM. Stdlib only.

For two uses where the client library does not do: the broker's probe (importing the library costs 50 times
more than a look), and asking why a log-in failed (the library tries until its timeout, and then says no more
than that it could not).

Log-in: RFC 5802 (SCRAM) with SHA-512 or SHA-256, framed by SaslHandshake and SaslAuthenticate (KIP-152).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import struct
from types import TracebackType

ANSWER_BYTES_MAX = 1_000_000
ITERATIONS_MAX = 1_000_000
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class RefusedError(RuntimeError):
    """The broker answered, and does not let this user in."""


class Broker:
    """One connection; use it as a context.

    Args:
        host, port: where it listens.
        timeout_s: for the connection, and for each part of an answer.
        client: the name that the broker logs.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float, client: str = "tarn-health") -> None:
        self._port = port
        self._client = client.encode()
        self._socket = socket.create_connection((host, port), timeout=timeout_s)

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def ask(self, api: int, version: int, body: bytes) -> bytes:
        """The answer to one request, without its header; for versions with the old headers only.

        Raises:
            OSError: no answer in time.
            RuntimeError: not an answer of Kafka, or the connection was closed.
        """
        request = struct.pack(f">hhih{len(self._client)}s", api, version, 1, len(self._client), self._client)
        self._socket.sendall(struct.pack(">i", len(request) + len(body)) + request + body)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise RuntimeError(f"an answer of {size} bytes on port {self._port}: not a Kafka broker")
        return self._receive(size)[4:]

    def log_in(self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512") -> None:
        """Proves who we are, and lets the broker prove that it knows the password too.

        Raises:
            RefusedError: the broker does not know the user with this password, or not this way of logging in.
            OSError: no answer in time.
            RuntimeError: not an answer of Kafka, or the connection was closed.
        """
        name = mechanism.encode()
        reader = Reader(self.ask(SASL_HANDSHAKE, 1, struct.pack(f">h{len(name)}s", len(name), name)))
        if reader.take(">h") != 0:
            offered = ", ".join(reader.text() for _ in range(reader.take(">i"))) or "nothing"
            raise RefusedError(f"port {self._port} takes {offered} and not {mechanism}")
        proof = Scram(user, password, secrets.token_urlsafe(24), hash_name=HASHES[mechanism])
        final = proof.answer(self._authenticate(user, proof.first))
        if not proof.is_servers(self._authenticate(user, final)):
            raise RefusedError(f"who answers on port {self._port} does not know the password of {user}")

    def _authenticate(self, user: str, message: bytes) -> bytes:
        answer = self.ask(SASL_AUTHENTICATE, 0, struct.pack(f">i{len(message)}s", len(message), message))
        reader = Reader(answer)
        code, told = reader.take(">h"), reader.text()
        if code != 0:
            raise RefusedError(f"port {self._port} refuses user {user}: {told or f'error {code}'}")
        return reader.blob()

    def _receive(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece = self._socket.recv(size - len(content))
            if not piece:
                raise RuntimeError(f"the broker closed the connection after {len(content)} of {size} bytes")
            content += piece
        return content


class Scram:
    """The client's side of one log-in, without channel binding.

    Args:
        user, password: who.
        nonce: never used before.
        hash_name: sha512 or sha256.
    """

    def __init__(self, user: str, password: str, nonce: str, *, hash_name: str) -> None:
        self._password = password.encode()
        self._nonce = nonce
        self._hash = hash_name
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}"
        self._servers = b""

    @property
    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def answer(self, server_first: bytes) -> bytes:
        """The second message: the proof that we know the password.

        Raises:
            RefusedError: what the server sent is not for us, or would cost too much.
        """
        told = server_first.decode()
        parts = dict(part.split("=", 1) for part in told.split(",") if "=" in part)
        nonce, rounds = parts.get("r", ""), int(parts.get("i", "0"))
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not 0 < rounds <= ITERATIONS_MAX:
            raise RefusedError(f"the broker's challenge cannot be right: {rounds} iterations")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, base64.b64decode(parts["s"]), rounds)
        bare = f"c=biws,r={nonce}"
        signed = f"{self._bare},{told},{bare}".encode()
        key = hmac.digest(salted, b"Client Key", self._hash)
        signature = hmac.digest(hashlib.new(self._hash, key).digest(), signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self._servers = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), signed, self._hash)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def is_servers(self, server_final: bytes) -> bool:
        """Whether the server's last message proves that it knows the password."""
        expected = b"v=" + base64.b64encode(self._servers)
        return bool(self._servers) and hmac.compare_digest(server_final.split(b",")[0], expected)


class Reader:
    """Walks through an answer."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, form: str) -> int:
        """The next number, in struct's words."""
        (value,) = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        """The next text; empty if there is none."""
        return self._slice(self.take(">h")).decode("utf-8", "replace")

    def blob(self) -> bytes:
        """The next bytes."""
        return self._slice(self.take(">i"))

    def _slice(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + max(size, 0)
        return self._content[begin : self._at]
