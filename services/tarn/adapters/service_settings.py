"""Settings of the Python services: environment variables and secret files, one reader and one error for each.

A service's settings are a class over these. The only I/O is reading the environment and secret files, so the
catalog may use this module too. Probes have a reader of their own with the same rule for secret files
(`tarn.probe.look.secret`), as they run without the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from tarn.core.credentials import ACCESS_KEY_FILE, SECRET_KEY_FILE
from tarn.core.errors import InvalidSettingError
from tarn.core.hosts import parse_names

PREFIX = "TARN_"
SHOWN_CHARS_MAX = 100
_ADDRESS = re.compile(r"([a-z]+://)?(.*)", re.DOTALL)
_PARAMETERS = re.compile(r"[;?].*", re.DOTALL)


def _url(value: str, *, path: bool) -> str:
    parts = urlsplit(value)
    _ = parts.port  # raises if it is not a port
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or (parts.path.strip("/") and not path)
        or re.search(r"\s", value)
    ):
        raise ValueError("not an address of this form")
    return value.rstrip("/")


def _names(text: str) -> str:
    return ",".join(parse_names(text))


Endpoint = Annotated[
    str,
    AfterValidator(lambda value: _url(value, path=False)),
    Field(description="http or https, a host and a port, as in http://minio:9000"),
]
"""Address without a path; a slash at its end is removed."""

OptionalEndpoint = Annotated[
    str,
    AfterValidator(lambda value: _url(value, path=False) if value else value),
    Field(description="empty, or http or https, a host and a port, as in http://minio:9000"),
]
"""Address without a path, or none."""

Url = Annotated[
    str,
    AfterValidator(lambda value: _url(value, path=True)),
    Field(description="an http or https address, as in http://catalog:8181"),
]
"""Address that may have a path; a slash at its end is removed."""

SparkRemote = Annotated[str, Field(pattern=r"^sc://[^\s]+$", description="an address as in sc://spark:15002")]
HostNames = Annotated[
    str,
    AfterValidator(_names),
    Field(description="host names or addresses without ports, separated by commas, as in a.lan,b.lan"),
]
Port = Annotated[int, Field(ge=0, le=65_535)]
Switch = Literal["on", "off"]
Warehouse = Annotated[str, Field(min_length=1, description="a name that is not empty")]


class StoreAccess(TypedDict):
    """Arguments of the store's clients (`S3Store`, `S3Bulk`): the bucket, and the service's own keys."""

    bucket: str
    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str


class TarnSettings(BaseSettings):
    """Settings that every service has."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    secrets_dir: Path = Path("/run/tarn/secrets")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @classmethod
    def read(cls) -> Self:
        """Read the settings of this class from the environment.

        Raises:
            InvalidSettingError: variables are invalid; names each with its value and the allowed values.
        """
        try:
            return cls()
        except ValidationError as e:
            wrong = [(str(error["loc"][0]), error) for error in e.errors(include_url=False)]
            found = [
                f"{PREFIX}{field.upper()} is {_shown(error['input'])}, "
                f"allowed: {allowed(cls, field) or error['msg']}"
                for field, error in wrong
            ]
            raise InvalidSettingError(
                f"{'; '.join(found)}; see Settings in docs/reference.md",
                setting=f"{PREFIX}{wrong[0][0].upper()}",
            ) from None  # pydantic's error shows the values as they are

    def secret(self, name: str) -> str:
        """Read a secret file of this service now; see `read_secret`."""
        return read_secret(self.secrets_dir / name)


class StoreSettings(TarnSettings):
    """Settings of a service that uses the object store."""

    s3_endpoint: Endpoint = "http://minio:9000"
    region: str = Field(
        default="us-east-1", pattern="^[a-z0-9-]+$", description="lower-case letters, digits and hyphens"
    )
    bucket: str = Field(
        default="tarn",
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        description="3 to 63 lower-case letters, digits, dots and hyphens; a letter or digit at both ends",
    )

    def store_access(
        self, key_id_file: str = ACCESS_KEY_FILE, key_file: str = SECRET_KEY_FILE
    ) -> StoreAccess:
        """Where the bucket is, with the keys in the service's secret files, read now.

        Args:
            key_id_file: secret file of the access key id.
            key_file: secret file of the secret access key.

        Raises:
            InvalidSettingError: a secret file cannot be read or is empty.
        """
        return StoreAccess(
            bucket=self.bucket,
            endpoint=self.s3_endpoint,
            region=self.region,
            access_key_id=self.secret(key_id_file),
            secret_access_key=self.secret(key_file),
        )


def read_secret(path: Path) -> str:
    r"""Content of a secret file without its trailing newlines (`\n` or `\r\n`); other white space is kept.

    Raises:
        InvalidSettingError: the file cannot be read, is not UTF-8, or is empty.
    """
    try:
        value = path.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise InvalidSettingError(
            f"secret {path} cannot be read: {reason}; the service init makes it: run scripts/up, or set "
            "TARN_SECRETS_DIR to the folder that holds it",
            path=str(path),
        ) from e
    if not value:
        raise InvalidSettingError(
            f"secret {path} is empty; remove it and run scripts/up, then the service init makes it",
            path=str(path),
        )
    return value


def allowed(kind: type[BaseSettings], field: str) -> str:
    """Allowed values of a setting in words, from its field's type; empty if the type does not say them."""
    info = kind.model_fields[field]
    if info.description:
        return info.description
    if get_origin(info.annotation) is Literal:
        *first, last = map(str, get_args(info.annotation))
        return f"{', '.join(first)} or {last}"
    least, most = ([getattr(m, name) for m in info.metadata if hasattr(m, name)] for name in ("ge", "le"))
    return f"a whole number from {least[0]} to {most[0]}" if least and most else ""


def _shown(value: Any) -> str:
    """A value for a message, cut, without what may hold a token or a password.

    That is what follows `;` or `?` in an address, and all of it but the scheme if there is an `@`.
    """
    found = _ADDRESS.fullmatch(str(value))
    assert found is not None, "the pattern matches any text"
    scheme, rest = found.group(1) or "", found.group(2)
    rest = "\u2026" if "@" in rest else _PARAMETERS.sub("\u2026", rest)
    return repr((scheme + rest)[:SHOWN_CHARS_MAX])
