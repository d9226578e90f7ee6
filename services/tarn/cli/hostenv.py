"""Settings for clients on the host: after `eval "$(scripts/tarn env)"` any client of the lake works."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tarn.adapters.kafka_login import Login
from tarn.cli.settings import Secrets, Settings
from tarn.core.errors import InvalidError

# Opens the tour: JupyterLab alone would show the user's own empty folder.
START = "lab/tree/tarn/start.md"
HOST = "127.0.0.1"
TRINO_CATALOG = "tarn"
TRINO_USER = "cli"
"""The principal whose credential the command line has."""


def host_env(settings: Settings, secrets: Secrets, login: Login) -> dict[str, str]:
    """Return {variable: value}, with addresses as reached from the host.

    The users of the store and of Kafka are the cli's own; the store user has no access to the catalog's keys.

    Args:
        settings: addresses and ports.
        secrets: the cli's secrets.
        login: the cli's Kafka credentials.
    """
    return {
        "TARN_CATALOG_URI": f"http://{HOST}:{settings.port_catalog}",
        "TARN_CATALOG_CREDENTIAL": secrets.credential,
        "TARN_WAREHOUSE": settings.warehouse,
        # Not TARN_BUCKET: scripts/up of another clone in the same shell would take that for its own.
        "TARN_S3_BUCKET": settings.bucket,
        "TARN_S3_ENDPOINT": f"http://{HOST}:{settings.port_s3}",
        "AWS_ACCESS_KEY_ID": secrets.access_key,
        "AWS_SECRET_ACCESS_KEY": secrets.secret_key,
        "AWS_REGION": settings.region,
        "TARN_TRINO_URI": f"http://{HOST}:{settings.port_trino}",
        "TARN_TRINO_USER": TRINO_USER,
        "TARN_TRINO_PASSWORD": "",
        # Trino's clients send a password over TLS only, an extra credential always.
        "TARN_TRINO_EXTRA_CREDENTIALS": f"secret:{secrets.credential.partition(':')[2]}",
        "TARN_TRINO_CATALOG": TRINO_CATALOG,
        "TARN_GATEWAY_URI": f"http://{HOST}:{settings.port_gateway}",
        "TARN_INGEST_URI": f"http://{HOST}:{settings.port_ingest}",
        "TARN_STREAM_URI": f"http://{HOST}:{settings.port_stream}",
        "TARN_KAFKA_BOOTSTRAP": f"{HOST}:{settings.port_kafka}",
        "TARN_KAFKA_SECURITY_PROTOCOL": login.protocol,
        "TARN_KAFKA_SASL_MECHANISM": login.mechanism,
        "TARN_KAFKA_USERNAME": login.user,
        "TARN_KAFKA_PASSWORD": login.password,
        # The client sends a token without TLS only to a host of this name.
        "TARN_SPARK_REMOTE": f"sc://localhost:{settings.port_spark}/;token={secrets.spark_token}",
        "TARN_JUPYTER_URL": f"http://{HOST}:{settings.port_jupyter}/{START}?token={secrets.jupyter_token}",
    }


def exports(variables: Mapping[str, str], shell: str) -> str:
    """Return commands that set the variables in a shell: `sh` (bash, zsh) or `fish`.

    Raises:
        InvalidError: the shell is not supported.
    """
    if shell == "sh":
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    if shell == "fish":
        return "".join(f"set -gx {name} {_fish_quote(value)}\n" for name, value in variables.items())
    raise InvalidError(f"no such shell: {shell!r}; choose sh (for bash and zsh too) or fish", shell=shell)


def _fish_quote(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
