"""Settings of the command line, from the environment; see docs/reference.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tarn.adapters.kafka_login import KafkaSettings
from tarn.adapters.service_settings import SparkRemote, StoreSettings, Url, Warehouse, read_secret
from tarn.core.credentials import (
    ACCESS_KEY_FILE,
    CREDENTIAL_FILE,
    JUPYTER_TOKEN_FILE,
    SECRET_KEY_FILE,
    SPARK_TOKEN_FILE,
)

PublishedPort = Annotated[int, Field(ge=1, le=65_535)]


class Settings(StoreSettings, KafkaSettings):
    """Addresses as reached from the cli's container, and published ports as reached from the host."""

    warehouse: Warehouse = "tarn"
    catalog_uri: Url = "http://catalog:8181"
    trino_uri: Url = "http://trino:8080"
    spark_remote: SparkRemote = "sc://spark:15002"
    ingest_uri: Url = "http://ingest:8091"
    gateway_uri: Url = "http://gateway:8090"
    containers: str = ""
    profile: Literal["full", "small"] = "full"

    port_s3: PublishedPort = 9000
    port_catalog: PublishedPort = 8181
    port_kafka: PublishedPort = 9092
    port_spark: PublishedPort = 15002
    port_spark_ui: PublishedPort = 4040
    port_trino: PublishedPort = 8080
    port_ingest: PublishedPort = 8091
    port_gateway: PublishedPort = 8090
    port_stream: PublishedPort = 8092
    port_jupyter: PublishedPort = 8888


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


def load_secrets(folder: Path) -> Secrets:
    """Read the cli's own secrets.

    Raises:
        InvalidSettingError: a secret file cannot be read or is empty.
    """
    return Secrets(
        access_key=read_secret(folder / ACCESS_KEY_FILE),
        secret_key=read_secret(folder / SECRET_KEY_FILE),
        credential=read_secret(folder / CREDENTIAL_FILE),
        jupyter_token=read_secret(folder / JUPYTER_TOKEN_FILE),
        spark_token=read_secret(folder / SPARK_TOKEN_FILE),
    )
