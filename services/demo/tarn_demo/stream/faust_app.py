"""The Faust application: a group of workers that share the partitions, one reader for each topic.

Faust assigns partitions, reads and hands messages over, one at a time; it holds no state (docs/stream.md says
why). Its consumer begins where the states say, not where the group's offsets are. It acknowledges nothing to
Faust: what the group is said to have read is the positions of the steps.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import faust
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from tarn.adapters.kafka_login import Login
from tarn_demo.stream.tasks import Place, Tasks
from tarn_demo.stream.topics import EVENTS, GROUP, PARTIALS

TELL_EVERY_S = 1.0
SEND_WAIT_S = 60.0
LINGER_S = 0.05
"""How long a message may wait for others, in seconds: alone, each would be a request to the broker."""
SESSION_S = 10.0
PREFETCH = 2_000


def make_app(
    bootstrap: str,
    login: Login,
    tasks: Callable[[], Tasks],
    *,
    failed: Callable[[BaseException], None],
    tell: Callable[[], Awaitable[None]],
    data_dir: str,
) -> faust.App:
    """The application, not started yet.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        login: Kafka credentials.
        tasks: what runs the steps.
        failed: called with what a step cannot go on from.
        tell: called every `TELL_EVERY_S`.
        data_dir: a folder for Faust, which needs one although nothing is kept there.
    """
    app = faust.App(
        GROUP,
        broker=[f"kafka://{address}" for address in bootstrap.split(",")],
        broker_credentials=_credentials(login),
        broker_client_id="tarn-stream",
        broker_session_timeout=SESSION_S,
        broker_heartbeat_interval=3.0,
        broker_request_timeout=40.0,
        producer_request_timeout=SEND_WAIT_S,
        producer_linger=LINGER_S,
        producer_compression_type="gzip",
        consumer_auto_offset_reset="earliest",
        topic_allow_declare=False,
        topic_disable_leader=True,
        stream_buffer_maxsize=PREFETCH,
        web_enabled=False,
        autodiscover=False,
        datadir=data_dir,
        key_serializer="raw",
        value_serializer="raw",
    )
    app.transport = _transport(app, lambda: tasks().positions())

    @app.on_partitions_assigned.connect
    async def assigned(_app: Any, /, *places: set[TP], **_: Any) -> None:
        await _tried(tasks().assigned(Place(*place) for place in places[0]), failed)

    @app.on_partitions_revoked.connect
    async def revoked(_app: Any, /, *_places: Any, **_: Any) -> None:
        await _tried(tasks().revoked(), failed)

    for name in (EVENTS, PARTIALS):
        _read(app, name, tasks, failed)

    @app.timer(TELL_EVERY_S)  # type: ignore[untyped-decorator]
    async def tells() -> None:
        await _tried(tell(), failed)

    return app


def _read(
    app: faust.App, name: str, tasks: Callable[[], Tasks], failed: Callable[[BaseException], None]
) -> None:
    """Have every message of a topic taken, one after the other: the next comes when this one is done with."""
    topic = app.topic(name, key_serializer="raw", value_serializer="raw", allow_empty=True, acks=False)

    async def take(stream: Any) -> None:
        async for event in stream.events():
            message = event.message
            await _tried(
                tasks().take(Place(message.topic, message.partition), message.offset, message.value), failed
            )

    app.agent(topic, name=f"tarn.{name}", concurrency=1)(take)


async def _tried(work: Awaitable[None], failed: Callable[[BaseException], None]) -> None:
    """Do work; Faust would acknowledge a message after an exception too, and go on with the next."""
    try:
        await work
    except Exception as e:  # noqa: BLE001 - whatever it is: the process ends, and begins again from its states
        failed(e)


def _credentials(login: Login) -> Any:
    if login.protocol == "PLAINTEXT":
        return None
    return faust.SASLCredentials(
        mechanism=login.mechanism,
        username=login.user,
        password=login.password,
        ssl_context=ssl.create_default_context() if login.protocol == "SASL_SSL" else None,
    )


class _NoneRead(dict[TP, "int | None"]):
    """The offsets up to which Faust has handed messages over: none is kept.

    Faust drops a message below the one that it handed over last. A seek sets that back; but a message that is
    on its way into a full queue meanwhile sets it forward again afterwards, and what was sought is dropped
    when it comes. The steps know what they took; they need no such filter.
    """

    def __missing__(self, place: TP) -> None:
        return None

    def __setitem__(self, place: TP, offset: int | None) -> None:
        """Keep nothing."""

    def update(self, *_: Any, **__: Any) -> None:
        """Keep nothing."""


def _transport(app: faust.App, positions: Callable[[], Mapping[Place, int]]) -> driver.Transport:
    class Consumer(driver.Consumer):
        """Begins where the states say: Faust asks for committed offsets whenever it begins to read."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._read_offset = _NoneRead()
            self._last_commit: Mapping[TP, int] = {}

        def _own(self) -> dict[TP, int]:
            known = positions()
            return {place: known[Place(*place)] for place in self.assignment() if Place(*place) in known}

        async def seek_to_committed(self) -> Mapping[TP, int]:
            own = self._own()
            await self._thread.seek_wait(own)
            return own

        async def force_commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
            """Have the group's offsets be the positions, if they have changed."""
            own = self._own()
            if not own or own == self._last_commit:
                return False
            done = bool(await self._commit(own))
            if done:
                self._last_commit = own
            return done

    class Transport(driver.Transport):
        """Faust's transport with that consumer."""

    Transport.Consumer = Consumer
    return Transport(app.conf.broker_consumer, app)
