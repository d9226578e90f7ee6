"""The catalog's settings, from environment variables (docs/reference.md)."""

from __future__ import annotations

from pydantic import Field

from tarn.adapters.service_settings import (
    Endpoint,
    HostNames,
    OptionalEndpoint,
    Port,
    StoreSettings,
    Switch,
    Warehouse,
)
from tarn.adapters.store import S3Store
from tarn.adapters.sts import StoreTokenService
from tarn.core.credentials import VENDING_ACCESS_KEY_FILE, VENDING_SECRET_KEY_FILE
from tarn.core.hosts import Hosts, parse_names
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.access import MAX_AGE_S
from tarn_catalog.operations.vending import Vending


class Settings(StoreSettings):
    """Settings from `TARN_*` variables; see docs/reference.md, Settings."""

    s3_endpoint_inside: Endpoint = "http://minio:9000"
    s3_endpoint_published: Endpoint = "http://127.0.0.1:9000"
    warehouse: Warehouse = "tarn"
    catalog_host: str = "127.0.0.1"
    catalog_port_inside: Port = 8181
    catalog_port_published: Port = 8182
    catalog_store_wait_s: int = Field(default=120, ge=0, le=3600)
    catalog_grants_max_age_s: int = Field(default=MAX_AGE_S, ge=0, le=60)
    hosts: HostNames = ""
    sts_endpoint: OptionalEndpoint = ""
    trail: Switch = "off"

    @property
    def own_hosts(self) -> Hosts:
        """The host names that the catalog accepts in requests."""
        return Hosts.of("catalog", self.catalog_host, extra=parse_names(self.hosts))

    @property
    def roots(self) -> WarehouseLayout:
        """The mapping between keys and locations."""
        return WarehouseLayout(base=f"s3://{self.bucket}")

    def store(self) -> S3Store:
        """Return the S3 store at this service's endpoint, with the service's own keys.

        Raises:
            InvalidSettingError: a key's secret file cannot be read or is empty.
        """
        return S3Store(**self.store_access())

    def vending(self) -> Vending | None:
        """Return what vends store keys to clients; None without an address of the store's STS.

        Raises:
            InvalidSettingError: a key's secret file cannot be read or is empty.
        """
        if not self.sts_endpoint:
            return None
        access = self.store_access(VENDING_ACCESS_KEY_FILE, VENDING_SECRET_KEY_FILE)
        tokens = StoreTokenService(
            endpoint=self.sts_endpoint,
            region=self.region,
            access_key_id=access["access_key_id"],
            secret_access_key=access["secret_access_key"],
        )
        return Vending(tokens, self.roots)
