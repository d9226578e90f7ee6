"""Settings of the command line, from the environment; see docs/reference.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from tarn.adapters.environment import read
from tarn.adapters.kafka_login import ANONYMOUS, Login
from tarn.core.credentials import (
    ACCESS_KEY_FILE,
    CREDENTIAL_FILE,
    JUPYTER_TOKEN_FILE,
    KAFKA_PASSWORD_FILE,
    KAFKA_USER_FILE,
    SECRET_KEY_FILE,
    SPARK_TOKEN_FILE,
)
from tarn.core.errors import UnavailableError

_HTTP = r"^https?://[A-Za-z0-9.\-\[\]:]+/?$"
_HOST_PORT = r"^[A-Za-z0-9.\-]+:\d{1,5}(,[A-Za-z0-9.\-]+:\d{1,5})*$"


class Settings(BaseSettings):
    """Addresses as reached from the cli's container, and published ports as reached from the host."""

    model_config = SettingsConfigDict(env_prefix="TARN_", extra="ignore", frozen=True)

    s3_endpoint: str = Field(default="http://minio:9000", pattern=_HTTP)
    region: str = "us-east-1"
    bucket: str = "tarn"
    warehouse: str = "tarn"
    catalog_uri: str = Field(default="http://catalog:8181", pattern=_HTTP)
    kafka_bootstrap: str = Field(default="kafka:9092", pattern=_HOST_PORT)
    kafka_security_protocol: Literal["SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT"] = "SASL_PLAINTEXT"
    kafka_sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    trino_uri: str = Field(default="http://trino:8080", pattern=_HTTP)
    spark_remote: str = Field(default="sc://spark:15002", pattern=r"^sc://[^\s]+$")
    ingest_uri: str = Field(default="http://ingest:8091", pattern=_HTTP)
    secrets_dir: Path = Path("/run/tarn/secrets")
    log_level: str = "info"
    containers: str = ""
    profile: str = Field(default="full", pattern=r"^(full|small)$")

    port_s3: int = Field(default=9000, ge=1, le=65535)
    port_catalog: int = Field(default=8181, ge=1, le=65535)
    port_kafka: int = Field(default=9092, ge=1, le=65535)
    port_spark: int = Field(default=15002, ge=1, le=65535)
    port_spark_ui: int = Field(default=4040, ge=1, le=65535)
    port_trino: int = Field(default=8080, ge=1, le=65535)
    port_ingest: int = Field(default=8091, ge=1, le=65535)
    port_jupyter: int = Field(default=8888, ge=1, le=65535)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Secrets of the cli.

    Attributes:
        access_key: access key id of its store user.
        secret_key: secret access key of its store user.
        credential: credential of its catalog principal, `client_id:client_secret`.
        jupyter_token: token of JupyterLab; a copy, to show to users.
        spark_token: token of Spark Connect.
    """

    access_key: str
    secret_key: str = field(repr=False)
    credential: str = field(repr=False)
    jupyter_token: str = field(repr=False)
    spark_token: str = field(repr=False)


def load_settings() -> Settings:
    """Read the settings from the environment.

    Raises:
        InvalidSettingError: a variable is invalid.
    """
    return read(Settings)


def load_secrets(folder: Path) -> Secrets:
    """Read the cli's own secrets.

    Raises:
        UnavailableError: a secret file is missing or cannot be read.
    """
    return Secrets(
        access_key=_secret(folder, ACCESS_KEY_FILE),
        secret_key=_secret(folder, SECRET_KEY_FILE),
        credential=_secret(folder, CREDENTIAL_FILE),
        jupyter_token=_secret(folder, JUPYTER_TOKEN_FILE),
        spark_token=_secret(folder, SPARK_TOKEN_FILE),
    )


def load_login(settings: Settings) -> Login:
    """Return the cli's Kafka credentials; PLAINTEXT needs none and reads no files.

    Raises:
        UnavailableError: a secret file is missing or cannot be read.
    """
    if settings.kafka_security_protocol == "PLAINTEXT":
        return ANONYMOUS
    return Login(
        protocol=settings.kafka_security_protocol,
        mechanism=settings.kafka_sasl_mechanism,
        user=_secret(settings.secrets_dir, KAFKA_USER_FILE),
        password=_secret(settings.secrets_dir, KAFKA_PASSWORD_FILE),
    )


def _secret(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except OSError as error:
        raise UnavailableError(
            f"could not read the secret {folder / name}: {error.strerror}; the service init makes it on "
            "first start: run scripts/up, then this command by scripts/tarn",
            path=str(folder / name),
        ) from error
