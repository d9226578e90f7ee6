"""The age of the pins, from their recorded dates."""

from __future__ import annotations

from datetime import date

import pytest
from tarn_host.doctor import command
from tarn_host.stack import base, pins, project

VERSIONS = {
    "PINS_COMPARED": "20261121",
    "BASE_SUITE": "trixie",
    "TRINO_VERSION": "483",
    "MINIO_MODULE_VERSION": "v0.0.0-20260212201848-7aac2a2c5b7c",
}
TODAY = date(2026, 12, 1)


def old(today: date, made: date | None = date(2026, 11, 22), **changes: str) -> list[str]:
    found = pins.pins({**VERSIONS, **changes}, "tarn/base:x", made, today)
    return [pin.name for pin in found if pin.old]


def test_fresh_pins_are_only_listed() -> None:
    found = pins.pins(VERSIONS, "tarn/base:x", date(2026, 11, 22), TODAY)
    assert old(TODAY) == []
    text = "\n".join(pins.table(found, TODAY))
    assert "483" in text
    assert "tarn/base:x, 9 days old" in text
    assert "v0.0.0-20260212201848-7aac2a2c5b7c, 292 days old" in text
    assert "->" not in text


@pytest.mark.parametrize(
    ("today", "wanted"),
    [
        (date(2026, 12, 22), []),
        (date(2026, 12, 23), ["Debian packages in the base image"]),
        (
            date(2027, 2, 20),
            ["all pins, last compared with upstream", "Debian packages in the base image"],
        ),
    ],
)
def test_what_is_old_is_named(today: date, wanted: list[str]) -> None:
    assert old(today) == wanted


def test_each_old_thing_has_what_to_do() -> None:
    rows = pins.table(pins.pins(VERSIONS, "b", date(2026, 1, 1), date(2027, 6, 1)), date(2027, 6, 1))
    assert any("scripts/up --refresh" in row for row in rows)
    assert any("docs/upgrading.md" in row for row in rows)


def test_a_base_that_is_not_here_is_not_old_and_pins_without_a_day_are() -> None:
    assert old(TODAY, made=None) == []
    assert old(TODAY, PINS_COMPARED="soon") == ["all pins, last compared with upstream"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("2026-11-22T02:21:07.5Z", date(2026, 11, 22)), ("0001-01-01T00:00:00Z", None), ("", None)],
)
def test_the_day_of_an_image(text: str, wanted: date | None) -> None:
    assert pins.made_on(text) == wanted


def test_our_own_pins_all_have_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = set(project.versions()) - set(pins.NAMES) - {"BASE_DATE", "PINS_COMPARED", "KAFKA_SCALA"}
    assert left == set()
    monkeypatch.setattr(base, "made_at", lambda image: "2020-01-01T00:00:00Z")
    assert command.main(["--versions"]) == 1
    assert "x Debian packages in the base image" in capsys.readouterr().out
