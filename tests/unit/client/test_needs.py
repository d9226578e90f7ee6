"""The client needs nothing but the package's own dependencies and pyiceberg with pyarrow."""

from __future__ import annotations

import subprocess
import sys

import pytest

SERVICES = ("yaml", "kafka", "confluent_kafka", "msgspec", "crc32c", "lz4", "snappy")
COMMANDS = ("duckdb", "typer", "trino", "rich")


@pytest.mark.long
def test_the_client_is_imported_without_what_services_need() -> None:
    absent = f"import sys; sys.modules.update(dict.fromkeys({SERVICES + COMMANDS!r}))"
    code = f"{absent}; from tarn.client import subscribe; print(subscribe.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "subscribe\n"), done.stderr[-2_000:]
