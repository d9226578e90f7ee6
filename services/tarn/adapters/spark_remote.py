"""The Spark Connect address with its access token."""

from __future__ import annotations

from pathlib import Path

from tarn.core.credentials import SPARK_TOKEN_FILE


def with_token(remote: str, secrets_dir: Path) -> str:
    """Return `sc://host:port/;authorization=Bearer%20<token>`, with the token of the secret file.

    Spark's client sends unknown parameters as metadata of every call, which is where the server expects the
    token. The client's own parameter `token` requires TLS, except for the host `localhost`.

    An address that already has parameters is returned unchanged, and so is any address if there is no secret
    file, as with a Spark of the user's own.

    Raises:
        OSError: the secret file cannot be read.
    """
    path = secrets_dir / SPARK_TOKEN_FILE
    if "/;" in remote or not path.exists():
        return remote
    return f"{remote.rstrip('/')}/;authorization=Bearer%20{path.read_text(encoding='ascii').strip()}"
