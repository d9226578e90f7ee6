"""kafka-python closes the sockets of clients that are closed while they connect or send; it leaves some."""

from __future__ import annotations

import warnings
from typing import Any


def close_abandoned_sockets() -> None:
    """Let a task of kafka-python that is cancelled close its socket.

    The library leaves it to the collector, whose warning fails whichever test comes next. On loopback the
    kernel has connected such a socket by then, so that it looks like a connection that somebody forgot.
    """
    with warnings.catch_warnings():
        # kafka-python reads its message schemas with a function that is deprecated in Python 3.11.
        warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
        from kafka.net.inet import KafkaNetSocket
        from kafka.net.transport import KafkaTCPTransport

    if hasattr(KafkaNetSocket.sock_connect, "closes"):
        return
    connect, write = KafkaNetSocket.sock_connect, KafkaTCPTransport._write_to_sock

    async def sock_connect(self: Any, net: Any, sock: Any, *args: Any, **options: Any) -> Any:
        try:
            return await connect(self, net, sock, *args, **options)
        except BaseException:
            sock.close()
            raise

    async def write_to_sock(self: Any) -> Any:
        try:
            return await write(self)
        except GeneratorExit:
            if self._closed and self._sock is not None:
                self._sock.close()
            raise

    patched: Any = sock_connect
    patched.closes = True
    KafkaNetSocket.sock_connect = patched
    KafkaTCPTransport._write_to_sock = write_to_sock
