"""Sessions of Spark Connect: the address with its access token, and a session that ends when it should."""

from __future__ import annotations

import atexit
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tarn.adapters.service_settings import read_secret
from tarn.core.credentials import SPARK_TOKEN_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

RETRIES_MAX, RETRY_WAIT_MS_MAX = 4, 2_000


def with_token(remote: str, secrets_dir: Path) -> str:
    """Return `sc://host:port/;authorization=Bearer%20<token>`, with the token of the secret file.

    Spark's client sends unknown parameters as metadata of every call, which is where the server expects the
    token. The client's own parameter `token` requires TLS, except for the host `localhost`.

    An address that already has parameters is returned unchanged, and so is any address if there is no secret
    file, as with a Spark of the user's own.

    Raises:
        InvalidSettingError: the secret file cannot be read or is empty.
    """
    path = secrets_dir / SPARK_TOKEN_FILE
    if "/;" in remote or not path.exists():
        return remote
    return f"{remote.rstrip('/')}/;authorization=Bearer%20{read_secret(path)}"


@contextmanager
def session(remote: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A new session with these settings, released on the server at the end.

    Its calls are retried for seconds, not for the client's ten minutes: the caller retries.

    Args:
        remote: the address, see `with_token`.
        settings: Spark's settings for the session.

    Raises:
        PySparkException, grpc.RpcError: Spark failed or does not answer.
    """
    from pyspark.logger import PySparkLogger
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    # Whoever catches an error logs it; the client must not log it as well.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", message=r"\[RETRIES_EXCEEDED\]", category=UserWarning)
    opened = ConnectSession.builder.remote(remote).create()
    try:
        opened.client.set_retry_policies(
            [DefaultPolicy(max_retries=RETRIES_MAX, max_backoff=RETRY_WAIT_MS_MAX)]
        )
        for key, value in settings.items():
            opened.conf.set(key, value)
        yield cast("SparkSession", opened)
    finally:
        close(opened)


def close(opened: ConnectSession) -> None:
    """Stop a session for good: nothing of it runs or stays in memory afterwards (pyspark 4.1.4).

    Its finalizer closes the client again, which waits for a thread pool that all sessions of the process
    share. If the garbage collector runs it while another session hands work to that pool, the thread waits
    for a lock that it holds itself, for ever. And a call at the end of the process keeps each client until
    then.
    """
    opened.stop()
    client = opened.client
    client.close = lambda: None  # type: ignore[method-assign]
    atexit.unregister(client._cleanup_ml_cache)
