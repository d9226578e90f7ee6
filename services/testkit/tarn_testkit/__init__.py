"""A pytest plugin for end-to-end tests against a real lake (docs/test-your-pipeline.md).

plugin      fixtures `lake` and `namespace`, options, the marker `tarn_stack`
lake        what a test works with: Lake, Namespace, Ingested
faults      killing, freezing, losing an answer; proxy is what loses it
choice      which lake a session gets
embedded    catalog and ingest engine in the test's process; memory has its topics
attached    a running stack; started starts one, containers kills and freezes its services
messages    rows as messages; isolation moves specs into a namespace
errors      the error tree
"""

from __future__ import annotations

from tarn_testkit.errors import (
    IngestorError,
    InvalidRowsError,
    KitError,
    NeedsStackError,
    NotAllowedError,
    NotInProfileError,
    SetupError,
    WaitError,
)
from tarn_testkit.waiting import eventually

__all__ = [
    "IngestorError",
    "InvalidRowsError",
    "KitError",
    "NeedsStackError",
    "NotAllowedError",
    "NotInProfileError",
    "SetupError",
    "WaitError",
    "eventually",
]
