"""Memory that the lake needs; the measurements in docs/benchmarks/raw are the only source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tarn_host.stack.project import ROOT

RAW = ROOT / "docs/benchmarks/raw"
MEASURED = ("memory", "soak")
MARGIN = 0.1
STEP_MIB = 100


def limit_variable(service: str) -> str:
    """The setting of a service's memory limit. Pure."""
    return f"TARN_MEM_{service.upper().replace('-', '_')}"


def memory_mib(*, small: bool = False) -> int:
    """Memory that must be available for the lake, MiB; 0 if there is no measurement."""
    found: dict[str, Any] = {}
    for name in MEASURED:
        file = RAW / f"{name}.json"
        if file.is_file():
            found[name] = json.loads(file.read_text(encoding="utf-8"))["runs"][0]
    return asked_mib(found, small=small)


def asked_mib(found: Mapping[str, Any], *, small: bool = False) -> int:
    """The same from runs of `memory` and `soak`, if there are any, MiB. Pure."""
    return _rounded(peak_small_mib(found) if small else peak_mib(found))


def words(found: Mapping[str, Any]) -> str:
    """The sentence of the page about what `scripts/up` requires. Pure."""
    full, small = asked_mib(found), asked_mib(found, small=True)
    return (
        f"`scripts/up` asks for {full:,} MiB of memory: the largest moment of this table, or of the hours of "
        f"use without the files' cache, and {MARGIN:.0%}. With `--small` it asks for {small:,} MiB: the "
        "largest numbers of the services that are left, added up.\n"
    )


def peak_mib(found: Mapping[str, Any]) -> int:
    """Peak memory of all services at one moment, over all stages and hours of use, MiB. Pure.

    Of the hours without the files' cache: it grows while there is room, and the kernel takes it back.

    Args:
        found: `memory` and `soak`, if present -> its run.
    """
    stages = found.get("memory", {}).get("stages", {}).values()
    records = found.get("soak", {}).get("records", [])
    return max((*(each["all"]["max_mib"] for each in stages), *map(_held_mib, records)), default=0)


def peak_small_mib(found: Mapping[str, Any]) -> int:
    """Sum of the peaks over all stages of each service that was measured in the small profile, MiB. Pure."""
    stages = {name: stage["services"] for name, stage in found.get("memory", {}).get("stages", {}).items()}
    return sum(
        max(services[name]["max_mib"] for services in stages.values() if name in services)
        for name in stages.get("small", {})
    )


def _held_mib(record: Mapping[str, Any]) -> int:
    """What all services together hold that is no cache of files, MiB."""
    held: float = sum(one["anon_mib"] + one["shmem_mib"] for one in record["services"].values())
    return round(held)


def _rounded(mib: int) -> int:
    """The amount plus the margin, rounded up to whole steps."""
    return -(-int(mib * (1 + MARGIN)) // STEP_MIB) * STEP_MIB
