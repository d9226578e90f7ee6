"""Settings of the gateway: environment variables named in docs/reference.md, secrets from files."""

from __future__ import annotations

from tarn.adapters.kafka_login import KafkaSettings
from tarn.adapters.service_settings import HostNames, Port, StoreSettings, Url, Warehouse
from tarn.core.hosts import Hosts, parse_names


class Settings(StoreSettings, KafkaSettings):
    """Environment variables of the service."""

    warehouse: Warehouse = "tarn"
    catalog_uri: Url = "http://catalog:8181"
    gateway_listen: str = "0.0.0.0"  # noqa: S104 - inside the container; published on 127.0.0.1 only
    gateway_port: Port = 8090
    hosts: HostNames = ""

    @property
    def own_hosts(self) -> Hosts:
        """The Host header values that the gateway accepts."""
        return Hosts.of("gateway", self.gateway_listen, extra=parse_names(self.hosts))
