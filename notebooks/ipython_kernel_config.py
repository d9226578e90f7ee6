"""Configuration of every kernel: the address of Spark Connect with its token.

IPython reads this file from a folder of the image. The token comes from a secret file and not from the
container's environment, where `docker inspect` would show it.
"""

import os
from pathlib import Path


def with_token(remote: str) -> str:
    """Return the address with the token; unchanged if it has parameters or there is no secret file."""
    path = Path(os.environ.get("TARN_SECRETS_DIR", "/run/tarn/secrets"), "spark_token")
    if "/;" in remote or not path.exists():
        return remote
    token = path.read_text(encoding="utf-8").rstrip("\n")
    return f"{remote.rstrip('/')}/;authorization=Bearer%20{token}"


if os.environ.get("TARN_SPARK_REMOTE"):
    os.environ["TARN_SPARK_REMOTE"] = with_token(os.environ["TARN_SPARK_REMOTE"])
