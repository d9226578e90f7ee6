"""A minimal Kafka connection: requests as bytes, and SCRAM login. Stdlib only.

For two cases in which the client library does not serve: the broker's probe (importing the library costs 50
times more than a check), and the reason of a failed login (the library retries until its timeout, and then
reports only that it failed).

Login: RFC 5802 (SCRAM) with SHA-512 or SHA-256, framed by SaslHandshake and SaslAuthenticate (KIP-152).
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
    """The broker responded, and rejects the login."""


class Broker:
    """One connection; use it as a context manager.

    Args:
        host: host of the broker.
        port: port of the broker.
        timeout_s: limit of the connection and of each read, in seconds.
        client: client id that the broker logs.

    Raises:
        OSError: nothing listens there.
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
        """Send one request and return the response without header; only for versions with the old headers.

        Args:
            api: API key.
            version: API version.
            body: request body.

        Raises:
            OSError: no response in time.
            RuntimeError: not a Kafka response, or the connection was closed.
        """
        request = struct.pack(f">hhih{len(self._client)}s", api, version, 1, len(self._client), self._client)
        self._socket.sendall(struct.pack(">i", len(request) + len(body)) + request + body)
        (size,) = struct.unpack(">i", self._receive(4))
        if not 4 <= size <= ANSWER_BYTES_MAX:
            raise RuntimeError(f"an answer of {size} bytes on port {self._port}: not a Kafka broker")
        return self._receive(size)[4:]

    def log_in(self, user: str, password: str, *, mechanism: str = "SCRAM-SHA-512") -> None:
        """Log in, and verify that the broker knows the password too.

        Args:
            user: user name.
            password: password.
            mechanism: `SCRAM-SHA-512` or `SCRAM-SHA-256`.

        Raises:
            RefusedError: the broker does not know the user with this password, or not this mechanism.
            OSError: no response in time.
            RuntimeError: not a Kafka response, or the connection was closed.
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
        code, reason = reader.take(">h"), reader.text()
        if code != 0:
            raise RefusedError(f"port {self._port} refuses user {user}: {reason or f'error {code}'}")
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
    """Client side of one SCRAM login, without channel binding.

    Args:
        user: user name.
        password: password.
        nonce: client nonce, never used before.
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
        """The client-first message."""
        return f"n,,{self._bare}".encode()

    def answer(self, server_first: bytes) -> bytes:
        """The client-final message, which proves knowledge of the password.

        Raises:
            RefusedError: the server's message does not match this login, or requires too many iterations.
        """
        challenge = server_first.decode()
        parts = dict(part.split("=", 1) for part in challenge.split(",") if "=" in part)
        nonce, rounds = parts.get("r", ""), int(parts.get("i", "0"))
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not 0 < rounds <= ITERATIONS_MAX:
            raise RefusedError(f"the broker's challenge cannot be right: {rounds} iterations")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, base64.b64decode(parts["s"]), rounds)
        bare = f"c=biws,r={nonce}"
        signed = f"{self._bare},{challenge},{bare}".encode()
        key = hmac.digest(salted, b"Client Key", self._hash)
        signature = hmac.digest(hashlib.new(self._hash, key).digest(), signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self._servers = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), signed, self._hash)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def is_servers(self, server_final: bytes) -> bool:
        """Whether the server-final message proves that the server knows the password."""
        expected = b"v=" + base64.b64encode(self._servers)
        return bool(self._servers) and hmac.compare_digest(server_final.split(b",")[0], expected)


class Reader:
    """Cursor over a response."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, form: str) -> int:
        """Read the next number; `form` is a format of the struct module."""
        (value,) = struct.unpack_from(form, self._content, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        """Read the next string; empty if null."""
        return self._slice(self.take(">h")).decode("utf-8", "replace")

    def blob(self) -> bytes:
        """Read the next byte array."""
        return self._slice(self.take(">i"))

    def _slice(self, size: int) -> bytes:
        begin, self._at = self._at, self._at + max(size, 0)
        return self._content[begin : self._at]
