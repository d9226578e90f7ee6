"""Settings of the ingest service: environment variables named in docs/reference.md, secrets from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tarn.adapters.kafka import Client
from tarn.adapters.kafka_login import KafkaSettings
from tarn.adapters.service_settings import (
    HostNames,
    OptionalEndpoint,
    Port,
    StoreSettings,
    Switch,
    Url,
    Warehouse,
)
from tarn.core.hosts import Hosts, parse_names


class Settings(StoreSettings, KafkaSettings):
    """Environment variables of the service."""

    warehouse: Warehouse = "tarn"
    catalog_uri: Url = "http://catalog:8181"
    specs_dir: Path = Path("/etc/tarn/specs")
    ingest_listen: str = "0.0.0.0"  # noqa: S104 - inside the container; published on 127.0.0.1 only
    ingest_port: Port = 8091
    ingest_specs: Literal["store", "folder"] = "store"
    ingest_writers: Literal["threads", "processes"] = "threads"
    ingest_kafka_client: Client = "librdkafka"
    ingest_batch_mib: Annotated[int, Field(ge=1, le=65_536)] = 48
    ingest_audit_every_s: Annotated[int, Field(ge=0, le=2_592_000)] = 900
    ingest_audit_all_files_s: Annotated[int, Field(ge=60, le=31_536_000)] = 86_400
    faults: Switch = "off"
    stream_url: OptionalEndpoint = ""
    hosts: HostNames = ""
    trail: Switch = "off"

    @property
    def own_hosts(self) -> Hosts:
        """The Host header values that the status server accepts."""
        return Hosts.of("ingest", self.ingest_listen, extra=parse_names(self.hosts))
