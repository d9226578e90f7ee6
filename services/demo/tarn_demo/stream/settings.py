"""Settings of the service stream: environment variables named in docs/reference.md, secrets from files."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from tarn.adapters.kafka_login import KafkaSettings
from tarn.adapters.service_settings import HostNames, Port
from tarn.core.hosts import Hosts, parse_names
from tarn_demo.stream.alerts import Limits
from tarn_demo.stream.windows import LATENESS_S_MAX, WINDOW_S_MAX, WINDOW_S_MIN, Rules


def _origins(text: str) -> str:
    found = [one.strip().rstrip("/") for one in text.split(",") if one.strip()]
    for one in found:
        parts = urlsplit(one)
        if parts.scheme not in ("http", "https") or one != f"{parts.scheme}://{parts.netloc}" or "@" in one:
            raise ValueError("not an origin")
    return ",".join(found)


Origins = Annotated[
    str,
    AfterValidator(_origins),
    Field(description="origins of pages, separated by commas, as in http://127.0.0.1:8091"),
]


class Settings(KafkaSettings):
    """Environment variables of the service."""

    stream_listen: str = "0.0.0.0"  # noqa: S104 - inside the container; published on 127.0.0.1 only
    stream_port: Port = 8092
    stream_pages: Origins = ""
    stream_window_s: Annotated[int, Field(ge=WINDOW_S_MIN, le=WINDOW_S_MAX)] = 10_800
    stream_hop_s: Annotated[int, Field(ge=WINDOW_S_MIN, le=WINDOW_S_MAX)] = 3_600
    stream_lateness_s: Annotated[int, Field(ge=0, le=LATENESS_S_MAX)] = 3_600
    stream_delay_minutes: Annotated[int, Field(ge=1, le=10_000)] = 60
    stream_delay_departures: Annotated[int, Field(ge=1, le=1_000)] = 3
    stream_cancelled: Annotated[int, Field(ge=1, le=1_000)] = 3
    hosts: HostNames = ""

    @property
    def own_hosts(self) -> Hosts:
        """The Host header values that the service accepts."""
        return Hosts.of("stream", self.stream_listen, extra=parse_names(self.hosts))

    @property
    def origins(self) -> frozenset[str]:
        """Origins of the pages that may read what the service answers."""
        return frozenset(one for one in self.stream_pages.split(",") if one)

    def rules(self) -> Rules:
        """How windows are cut.

        Raises:
            InvalidSettingError: the window is no whole number of hops.
        """
        return Rules.of(
            window_s=self.stream_window_s, hop_s=self.stream_hop_s, lateness_s=self.stream_lateness_s
        )

    def limits(self) -> Limits:
        """When there is an alert."""
        return Limits(
            delay_minutes=self.stream_delay_minutes,
            departures=self.stream_delay_departures,
            cancelled=self.stream_cancelled,
        )
