"""What `scripts/tarn env` prints: how a running stack is reached."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tarn_testkit.errors import SetupError

NAMES = (
    "TARN_CATALOG_URI",
    "TARN_CATALOG_CREDENTIAL",
    "TARN_WAREHOUSE",
    "TARN_S3_ENDPOINT",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "TARN_TRINO_URI",
    "TARN_TRINO_USER",
    "TARN_TRINO_EXTRA_CREDENTIALS",
    "TARN_TRINO_CATALOG",
    "TARN_GATEWAY_URI",
    "TARN_KAFKA_BOOTSTRAP",
    "TARN_KAFKA_SECURITY_PROTOCOL",
    "TARN_KAFKA_SASL_MECHANISM",
    "TARN_KAFKA_USERNAME",
    "TARN_KAFKA_PASSWORD",
    "TARN_SPARK_REMOTE",
)
"""What the kit needs of `scripts/tarn env`."""
INGEST = "TARN_INGEST_URI"
"""It goes without this one: ingest looks at what is declared every two seconds anyway."""
BUCKET = "TARN_S3_BUCKET"
"""And without this one, which earlier stacks do not say: their bucket is the usual one."""


def parse_exports(text: str) -> dict[str, str]:
    """The variables of what `scripts/tarn env` printed for sh."""
    found = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        for word in words[1:] if words[:1] == ["export"] else ():
            name, _, value = word.partition("=")
            found[name] = value
    return found


def require_values(env: Mapping[str, str]) -> None:
    """Require all that the kit reads.

    Raises:
        SetupError: something is missing.
    """
    missing = [name for name in NAMES if name not in env]
    if missing:
        raise SetupError(
            f'these variables are missing: {", ".join(missing)}; run eval "$(scripts/tarn env)" in the '
            "clone whose "
            "stack is running, or name a file with its output: --tarn-env=FILE"
        )
