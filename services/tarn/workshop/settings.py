"""Where the lake is, and whose notebook this is, from the environment; see docs/reference.md."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from pydantic import Field

from tarn.adapters.kafka_login import KafkaSettings
from tarn.adapters.service_settings import SparkRemote, StoreSettings, Url, Warehouse
from tarn.core.errors import InvalidError

STUDENT_PATTERN = r"^[a-z][a-z0-9]{0,19}$"
SMALL = 0.1
"""Factor of loops and row counts with `TARN_WORKSHOP_SIZE=small`."""


class WorkshopSettings(StoreSettings, KafkaSettings):
    """Addresses as reached from the container of the notebooks."""

    warehouse: Warehouse = "tarn"
    catalog_uri: Url = "http://catalog:8181"
    trino_uri: Url = "http://trino:8080"
    spark_remote: SparkRemote = "sc://spark:15002"
    ingest_uri: Url = "http://ingest:8091"
    gateway_uri: Url = "http://gateway:8090"
    student: Annotated[
        str,
        Field(
            pattern=STUDENT_PATTERN,
            description="a lower-case letter, then at most 19 lower-case letters and digits",
        ),
    ] = "student"
    workshop_size: Literal["full", "small"] = "full"

    @property
    def size(self) -> float:
        """The factor of loops and row counts."""
        return SMALL if self.workshop_size == "small" else 1.0


def require_student(name: str) -> str:
    """Return the name, which becomes part of a namespace, a topic and the name of an ingestor.

    Raises:
        InvalidError: it cannot.
    """
    if re.fullmatch(STUDENT_PATTERN, name) is None:
        raise InvalidError(
            f"student={name!r} cannot be part of a namespace; take a lower-case letter, then at most 19 "
            'lower-case letters and digits, as in student="ada"',
            student=name,
        )
    return name


def read_settings() -> WorkshopSettings:
    """Read the settings.

    Raises:
        InvalidSettingError: a variable is invalid.
    """
    # Every kernel adds the token to this address (notebooks/ipython_kernel_config.py); it is added here too.
    remote = os.environ.get("TARN_SPARK_REMOTE", "")
    if "/;" in remote:
        os.environ["TARN_SPARK_REMOTE"] = remote.partition("/;")[0]
        try:
            return WorkshopSettings.read()
        finally:
            os.environ["TARN_SPARK_REMOTE"] = remote
    return WorkshopSettings.read()
