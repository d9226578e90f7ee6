"""What `scripts/tarn env` prints: how a running stack is reached."""

from __future__ import annotations

import shlex

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
    "TARN_INGEST_URI",
    "TARN_KAFKA_BOOTSTRAP",
    "TARN_KAFKA_SECURITY_PROTOCOL",
    "TARN_KAFKA_SASL_MECHANISM",
    "TARN_KAFKA_USERNAME",
    "TARN_KAFKA_PASSWORD",
    "TARN_SPARK_REMOTE",
)
"""What the kit reads of `scripts/tarn env`."""


def parse_exports(text: str) -> dict[str, str]:
    """The variables of what `scripts/tarn env` printed for sh."""
    found = {}
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        for word in words[1:] if words[:1] == ["export"] else ():
            name, _, value = word.partition("=")
            found[name] = value
    return found
