"""The address of Spark Connect with what opens it."""

from __future__ import annotations

from pathlib import Path

from tarn.core.credentials import SPARK_TOKEN_FILE


def with_token(remote: str, secrets_dir: Path) -> str:
    """Return `sc://host:port/;authorization=Bearer%20<token>`, with the token of the secret file.

    Spark's client sends parameters that it does not know as metadata of every call, and this is how the
    server wants the token. Its own parameter `token` would want TLS, but for the host `localhost`.

    An address that has parameters already comes back as it is, and so does any where there is no secret file:
    that of a Spark of the user's own.

    Raises:
        OSError: the file may not be read.
    """
    path = secrets_dir / SPARK_TOKEN_FILE
    if "/;" in remote or not path.exists():
        return remote
    return f"{remote.rstrip('/')}/;authorization=Bearer%20{path.read_text(encoding='ascii').strip()}"
