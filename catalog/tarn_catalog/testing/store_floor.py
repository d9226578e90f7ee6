"""Time that the store alone takes for a load and a commit: the lower bound of the catalog's latency.

`python -m tarn_catalog.testing.store_floor` in the catalog's container prints it as JSON, for
scripts/bench catalog.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid

from tarn.core.naming import PROBE_PREFIX
from tarn.core.object_store import ObjectStore, Stored
from tarn_catalog.settings import Settings

POINTER_BYTES = 12_000


def measure(store: ObjectStore, *, calls: int, metadata_bytes: int) -> dict[str, list[float]]:
    """Return the milliseconds of every call, by kind.

    `read`: a read of the pointer; `unchanged`: a conditional read of it, as in a load; `write`: a write of
    new metadata and a swap of the pointer.

    Args:
        store: the store.
        calls: the number of calls of each kind.
        metadata_bytes: the size of the metadata.
    """
    name = uuid.uuid4().hex
    pointer = f"{PROBE_PREFIX}{name}/pointer"
    times: dict[str, list[float]] = {"read": [], "unchanged": [], "write": []}
    written = [pointer]
    try:
        etag = store.put(pointer, b"0" * POINTER_BYTES, if_absent=True)
        for number in range(calls):
            began = time.perf_counter()
            store.get(pointer)
            times["read"].append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            store.get(pointer, known=Stored(data=b"", etag=etag))
            times["unchanged"].append((time.perf_counter() - began) * 1000)
            key, value = f"{PROBE_PREFIX}{name}/{number}", b"%0*d" % (POINTER_BYTES, number)
            written.append(key)
            began = time.perf_counter()
            store.put(key, b"0" * metadata_bytes, if_absent=True)
            etag = store.put(pointer, value, if_match=etag)
            times["write"].append((time.perf_counter() - began) * 1000)
    finally:
        for key in written:
            store.delete(key)
    return times


def main() -> None:
    """Print the measurements as JSON, made with the service's own keys."""
    parser = argparse.ArgumentParser(prog="python -m tarn_catalog.testing.store_floor", allow_abbrev=False)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--metadata-bytes", type=int, required=True)
    options = parser.parse_args()
    found = measure(Settings.read().store(), calls=options.calls, metadata_bytes=options.metadata_bytes)
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
