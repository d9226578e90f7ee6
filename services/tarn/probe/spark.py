"""Check shared by the probes of Spark and of its clients: whether a Spark Connect server responds.

Stdlib only, see `runner.py`; a port that accepts connections says nothing about the process behind it.
"""

from __future__ import annotations

import socket

# HTTP/2 connection preface and an empty SETTINGS frame; the server opens with a SETTINGS frame (type 4) too.
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_FRAME_HEADER_BYTES = 9
HTTP2_SETTINGS = 4


def check_connect(address: tuple[str, int], timeout_s: float) -> None:
    """Open an HTTP/2 connection to a Connect server, as a gRPC client does, and wait for its SETTINGS frame.

    Args:
        address: host and port.
        timeout_s: limit of the connection and of each read, in seconds.

    Raises:
        RuntimeError: no connection, or no SETTINGS frame within the timeout.
    """
    name = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(HTTP2_HELLO)
            answer = b""
            while len(answer) < HTTP2_FRAME_HEADER_BYTES:
                chunk = connection.recv(64)
                if not chunk:
                    break
                answer += chunk
    except OSError as error:
        reason = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        raise RuntimeError(f"Spark Connect at {name}: {reason}") from error
    if len(answer) < HTTP2_FRAME_HEADER_BYTES or answer[3] != HTTP2_SETTINGS:
        raise RuntimeError(f"{name} does not speak as a Spark Connect server: {answer[:9]!r}")
