"""The catalog's settings, from environment variables (docs/reference.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tarn.adapters.store import S3Store
from tarn.core.errors import InvalidSettingError
from tarn.core.hosts import Hosts, parse_names
from tarn.core.naming import WarehouseLayout


def _endpoint(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(
            f"{value!r} is no endpoint; give a scheme, a host and a port, as in http://minio:9000"
        )
    return value.rstrip("/")


def _names(text: str) -> str:
    return ",".join(parse_names(text))


Endpoint = Annotated[str, AfterValidator(_endpoint)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class Settings(BaseSettings):
    """Settings from `TARN_*` variables; see docs/reference.md, Settings."""

    model_config = SettingsConfigDict(env_prefix="TARN_", extra="ignore", frozen=True)

    s3_endpoint: Endpoint = "http://minio:9000"
    s3_endpoint_inside: Endpoint = "http://minio:9000"
    s3_endpoint_published: Endpoint = "http://127.0.0.1:9000"
    region: str = Field(default="us-east-1", pattern="^[a-z0-9-]+$")
    bucket: str = Field(default="tarn", pattern="^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    warehouse: str = Field(default="tarn", min_length=1)
    secrets_dir: Path = Path("/run/tarn/secrets")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    catalog_host: str = "127.0.0.1"
    catalog_port_inside: Port = 8181
    catalog_port_published: Port = 8182
    catalog_store_wait_s: int = Field(default=120, ge=0, le=3600)
    hosts: Annotated[str, AfterValidator(_names)] = ""

    @property
    def own_hosts(self) -> Hosts:
        """The host names that the catalog accepts in requests."""
        return Hosts.of("catalog", self.catalog_host, extra=parse_names(self.hosts))

    @property
    def roots(self) -> WarehouseLayout:
        """The mapping between keys and locations."""
        return WarehouseLayout(base=f"s3://{self.bucket}")

    def secret(self, name: str) -> str:
        """Return the content of a secret file, without surrounding white space.

        Raises:
            InvalidSettingError: the file cannot be read or is empty.
        """
        path = self.secrets_dir / name
        try:
            value = path.read_text().strip()
        except OSError as e:
            raise InvalidSettingError(
                f"Cannot read the secret {path}: {e.strerror}; run the init service, or set TARN_SECRETS_DIR"
            ) from e
        if not value:
            raise InvalidSettingError(f"The secret {path} is empty; remove it and run the init service again")
        return value

    def store(self) -> S3Store:
        """Return the S3 store at this service's endpoint, with the service's own keys.

        Raises:
            InvalidSettingError: a key's secret file cannot be read or is empty.
        """
        return S3Store(
            bucket=self.bucket,
            endpoint=self.s3_endpoint,
            region=self.region,
            access_key_id=self.secret("s3_access_key_id"),
            secret_access_key=self.secret("s3_secret_access_key"),
        )


def load_settings() -> Settings:
    """Return the settings of this process.

    Raises:
        InvalidSettingError: a setting is not valid; the message names the variable.
    """
    try:
        return Settings()
    except ValidationError as e:
        lines = [
            f"TARN_{'_'.join(str(part) for part in error['loc']).upper()}: {error['msg']}"
            for error in e.errors(include_url=False)
        ]
        raise InvalidSettingError("Invalid settings:\n" + "\n".join(lines)) from e
