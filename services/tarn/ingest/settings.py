"""Settings of the ingest service: environment variables named in docs/reference.md, secrets from files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tarn.core.errors import InvalidSettingError
from tarn.core.hosts import Hosts, parse_names


def _names(text: str) -> str:
    return ",".join(parse_names(text))


class Settings(BaseSettings):
    """Environment variables of the service."""

    model_config = SettingsConfigDict(env_prefix="TARN_", frozen=True, extra="ignore")

    s3_endpoint: str = "http://minio:9000"
    region: str = "us-east-1"
    bucket: str = "tarn"
    warehouse: str = "tarn"
    catalog_uri: str = "http://catalog:8181"
    kafka_bootstrap: str = "kafka:9092"
    kafka_security_protocol: Literal["SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT"] = "SASL_PLAINTEXT"
    kafka_sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"
    secrets_dir: Path = Path("/run/tarn/secrets")
    specs_dir: Path = Path("/etc/tarn/specs")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    ingest_listen: str = "0.0.0.0"  # noqa: S104 - inside the container; published on 127.0.0.1 only
    ingest_port: int = Field(default=8091, ge=0, le=65_535)
    hosts: Annotated[str, AfterValidator(_names)] = ""

    @property
    def own_hosts(self) -> Hosts:
        """The Host header values that the status server accepts."""
        return Hosts.of("ingest", self.ingest_listen, extra=parse_names(self.hosts))

    @staticmethod
    def read() -> Settings:
        """Read the settings from the environment.

        Raises:
            InvalidSettingError: names the variable, its value and the allowed values.
        """
        try:
            return Settings()
        except ValidationError as e:
            told = [
                f"TARN_{'_'.join(str(p) for p in error['loc']).upper()} = {error['input']!r}: {error['msg']}"
                for error in e.errors(include_url=False)
            ]
            raise InvalidSettingError(f"settings cannot be used: {'; '.join(told)}; correct them") from e

    def secret(self, name: str) -> str:
        """Read a secret file now, without its trailing newlines.

        Raises:
            InvalidSettingError: the file cannot be read.
        """
        path = self.secrets_dir / name
        try:
            return path.read_text(encoding="utf-8").rstrip("\n")
        except OSError as e:
            raise InvalidSettingError(
                f"secret file {path} cannot be read: {e.strerror}; run init, or set TARN_SECRETS_DIR",
                path=str(path),
            ) from e
