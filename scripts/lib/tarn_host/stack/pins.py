"""scripts/doctor --versions: pinned versions, their ages, and which are due for review.

No network is used: ages come from the dates in versions.env and from the local images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from tarn_host.stack import base, project
from tarn_host.stack.project import Project

COMPARED_DAYS_MAX = 90
"""Age in days from which the comparison of all pins with upstream counts as old."""
NAMES = {
    "BASE_SUITE": "Debian's suite",
    "BASE_IMAGE": "the base where it is pulled",
    "UV_VERSION": "uv (tools of the builds)",
    "MINIO_GO_TOOLCHAIN": "Go (builds MinIO)",
    "MINIO_MODULE_VERSION": "MinIO",
    "KAFKA_VERSION": "Kafka",
    "KAFKA_JAVA_PACKAGE": "Kafka's Java",
    "TRINO_VERSION": "Trino",
    "SPARK_VERSION": "Spark",
    "SPARK_ICEBERG_VERSION": "Iceberg in Spark",
    "SPARK_KAFKA_SOURCE_VERSION": "Spark's Kafka source",
    "SPARK_KAFKA_TOKENS_VERSION": "its token provider",
    "SPARK_KAFKA_CLIENTS_VERSION": "its Kafka client",
    "SPARK_HADOOP_VERSION": "Hadoop's S3A in Spark",
    "SPARK_AWS_SDK_VERSION": "the AWS SDK of S3A",
}


@dataclass(frozen=True)
class Pin:
    """One pinned version or dated artifact.

    Attributes:
        name: what it is.
        version: its version.
        day: its date, or when it was last compared; None if unknown.
        old: what to do because it is old; empty if it is not.
    """

    name: str
    version: str
    day: date | None = None
    old: str = ""


def look(here: Project, today: date) -> list[Pin]:
    """The pins of this clone and the age of its base image."""
    return pins(project.versions(), here.base, made_on(base.made_at(here.base)), today)


def made_on(text: str) -> date | None:
    """The date in the engine's timestamp; None if there is none. Pure."""
    match = re.match(r"(\d{4})-(\d\d)-(\d\d)T", text)
    return date(int(match[1]), int(match[2]), int(match[3])) if match and int(match[1]) > 1 else None


def pins(versions: Mapping[str, str], image: str, made: date | None, today: date) -> list[Pin]:
    """Every pin of versions.env and the base image, with its age evaluated. Pure.

    Args:
        versions: content of versions.env.
        image: tag of the base image.
        made: its creation date; None if it does not exist.
        today: the current date.
    """
    compared = _day(versions.get("PINS_COMPARED", ""))
    stale = compared is None or (today - compared).days > COMPARED_DAYS_MAX
    again = (
        "compare versions.env and the lock files with upstream (docs/upgrading.md), then set PINS_COMPARED"
    )
    found = [
        Pin(
            "all pins, last compared with upstream",
            str(compared or "never"),
            compared,
            again if stale else "",
        )
    ]
    is_old = made is not None and (today - made).days > base.AGE_DAYS_MAX
    refresh = "scripts/up --refresh brings Debian's updates of today into every image"
    words = image if made else f"{image} is not here"
    found.append(Pin("Debian packages in the base image", words, made, refresh if is_old else ""))
    for key, version in versions.items():
        if key in NAMES:
            stamp = re.search(r"-(\d{8})\d{6}-[0-9a-f]{12}$", version)
            found.append(Pin(NAMES[key], version, _day(stamp[1]) if stamp else None))
    return found


def table(found: Sequence[Pin], today: date) -> list[str]:
    """The pins as table rows; old ones are marked with what to do. Pure."""
    width = max(len(pin.name) for pin in found)
    rows = []
    for pin in found:
        age = f", {(today - pin.day).days} days old" if pin.day else ""
        rows.append(f"  {'x' if pin.old else '.'} {pin.name:<{width}}  {pin.version}{age}")
        rows += [f"    -> {pin.old}"] if pin.old else []
    return rows


def _day(text: str) -> date | None:
    try:
        return datetime.strptime(text, "%Y%m%d").date()
    except ValueError:
        return None
