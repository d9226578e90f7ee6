"""Backup of the live stack while rows arrive, restored into an empty second stack: the same tables."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tarn_host.stack import project

from tests.support.containers import artifacts
from tests.support.stack import ENGINE_S, SCRIPTS, Stack, free_ports, run

IMAGES = ("minio", "services", "catalog")
RESTORE_S_MAX = 300

TRICKLE = """
import json, sys, threading, uuid
from datetime import UTC, datetime
from tarn.cli import wiring
from tarn.cli.canary import TOPIC, Limits
from tarn.cli.settings import Settings

log = wiring.flight(Settings.read(), Limits(), print).log
enough, sent = threading.Event(), 0
threading.Thread(target=lambda: (sys.stdin.read(), enough.set()), daemon=True).start()
while not enough.is_set():
    row = {"id": uuid.uuid4().hex, "sent_at": datetime.now(UTC).isoformat(), "note": "trickle"}
    log.send(TOPIC, json.dumps(row).encode(), timeout_s=90)
    sent += 1
    if sent == 1:
        print("begun", flush=True)
print("sent", sent)
"""

# Two commits a second thin the snapshot in the backup away within a minute, unless a reader's tag keeps it.
PIN = """
from tarn.cli.clients.lake import RestLake
from tarn.cli.settings import Settings, load_secrets

settings = Settings.read()
table = RestLake(settings, load_secrets(settings.secrets_dir))._catalog.load_table("ops.canary")
with table.manage_snapshots() as manage:
    ACTION
"""
PINNED = 'manage.create_tag(table.current_snapshot().snapshot_id, "tarn-reader-backup-test")'
LOOSE = 'manage.remove_tag("tarn-reader-backup-test")'

SUMS = """
import json
import pandas as pd
import pyarrow as pa
import pyarrow.types as kinds
from tarn.cli.clients.lake import RestLake
from tarn.cli.settings import Settings, load_secrets

settings = Settings.read()
catalog = RestLake(settings, load_secrets(settings.secrets_dir))._catalog
wanted = json.loads('''WANTED''')


def plain(column):
    if kinds.is_date(column.type):
        return column.cast(pa.int32())
    if kinds.is_decimal(column.type) or kinds.is_nested(column.type):
        return pa.array([str(v) for v in column.to_pylist()])
    return column


def tables(above=()):
    for namespace in catalog.list_namespaces(above):
        yield from (".".join(name) for name in catalog.list_tables(namespace))
        yield from tables(namespace)


found = {}
for name in sorted(wanted or tables()):
    table = catalog.load_table(name)
    current = table.current_snapshot()
    snapshot = wanted[name]["snapshot"] if wanted else (current.snapshot_id if current else None)
    rows = total = 0
    if snapshot is not None:
        for batch in table.scan(snapshot_id=snapshot).to_arrow_batch_reader():
            flat = pa.Table.from_batches([batch]).flatten().flatten()
            frame = pa.table({n: plain(c.combine_chunks()) for n, c in zip(flat.column_names, flat.columns)})
            sums = pd.util.hash_pandas_object(frame.to_pandas(), index=False)
            rows, total = rows + len(sums), (total + int(sums.sum())) % 2**64
    found[name] = {"snapshot": snapshot, "rows": rows, "sum": total}
print(json.dumps(found))
"""


def sums(of: Stack, wanted: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Row count and checksum of every table, by name; at the given snapshots, or the current ones."""
    answer = of.one_shot("cli", SUMS.replace("WANTED", json.dumps(wanted or {})), timeout_s=400)
    assert answer.code == 0, answer.text
    found: dict[str, Any] = json.loads(answer.text.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def copy(stack: Stack) -> Iterator[Stack]:
    """An empty second stack, not started."""
    names = list(project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8")))
    other = Stack(name=f"{stack.name}-copy", ports=free_ports(names))
    tags = {f"tarn/{image}:{stack.name}": f"tarn/{image}:{other.name}" for image in IMAGES}
    try:
        for here, there in tags.items():
            assert run(["docker", "tag", here, there], timeout_s=ENGINE_S).code == 0
        yield other
    finally:
        other.script("down", "--purge", "--yes", timeout_s=180)
        run(["docker", "image", "rm", *tags.values()], timeout_s=ENGINE_S)


@pytest.fixture(scope="module")
def pinned(stack: Stack) -> Iterator[None]:
    """The table that rows arrive in keeps its history."""
    made = stack.one_shot("cli", PIN.replace("ACTION", PINNED))
    assert made.code == 0, made.text
    yield
    gone = stack.one_shot("cli", PIN.replace("ACTION", LOOSE))
    assert gone.code == 0, gone.text


@pytest.fixture(scope="module")
def taken(stack: Stack, pinned: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup taken while rows arrived, and the lake's state in the meantime."""
    file = tmp_path_factory.mktemp("backup") / "lake.tar"
    command = ["docker", "compose", "run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli"]
    with subprocess.Popen(
        [*command, "-c", TRICKLE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=project.ROOT,
        env={**os.environ, **stack.env},
    ) as trickle:
        try:
            assert trickle.stdout is not None
            said = ""
            while "begun" not in said.splitlines():
                said += (line := trickle.stdout.readline().decode())
                assert line, said
            answer = stack.script("tarn", "backup", str(file), timeout_s=300)
            looked = stack.script("tarn", "fsck", "--json", timeout_s=240)
            said += trickle.communicate(timeout=120)[0].decode()
        finally:
            trickle.kill()
    assert answer.code == 0, answer.text
    assert re.search(r"\d+ tables, \d+ objects, [\d.]+ MiB in [\d.]+ s \(\d+ MiB/s\)", answer.text)
    assert re.search(r"^sent [1-9]", said, re.MULTILINE), said
    report = json.loads(looked.text[looked.text.index("{") :].splitlines()[0])
    assert looked.code == 0, looked.text
    assert report["clean"], report["findings"]
    assert {stream["stream"] for stream in report["streams"]} >= {"canary"}
    return file


def test_the_copy_is_whole_and_has_the_same_rows(stack: Stack, copy: Stack, taken: Path) -> None:
    began = time.monotonic()
    restored = copy.script("tarn", "restore", str(taken), timeout_s=RESTORE_S_MAX)
    seconds = time.monotonic() - began
    assert restored.code == 0, restored.text
    assert "The lake is whole" in restored.text
    assert "Kafka's log is no part of a backup" in restored.text
    assert re.search(r"^stream canary -> ops\.canary: topic tarn\.canary", restored.text, re.MULTILINE)
    stated = re.search(r"^restored in ([\d.]+) s", restored.text, re.MULTILINE)
    assert stated, restored.text
    figures = {"seconds_in_all": round(seconds, 1), "bytes": taken.stat().st_size}
    (artifacts() / "restore.json").write_text(json.dumps(figures), encoding="utf-8")
    # Before the first use: a second restore is refused because of the store's content.
    again = copy.script("tarn", "restore", str(taken), timeout_s=RESTORE_S_MAX)
    assert again.code == 1, again.text
    assert re.search(r"this lake is not empty: \d+ objects such as catalog/v1/", again.text)
    up = copy.compose("up", "--detach", "--no-build", "--pull", "never", "--wait", "catalog")
    assert up.code == 0, up.text
    found = sums(copy)
    assert found["ops.canary"]["rows"] > 0
    assert found == sums(stack, found)


def test_a_backup_that_is_cut_short_is_refused(copy: Stack, taken: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.tar"
    part.write_bytes(taken.read_bytes()[:-2000])
    answer = copy.script("tarn", "restore", str(part), timeout_s=240)
    assert answer.code == 2, answer.text
    assert "is cut short, or no backup" in answer.text
    assert "Nothing was changed" in answer.text


def test_a_lake_in_use_is_not_restored_into(stack: Stack, taken: Path) -> None:
    answer = stack.script("tarn", "restore", str(taken), timeout_s=240)
    assert answer.code == 1, answer.text
    assert re.search(r"this stack runs \(.*catalog.*\), and a restore needs an empty lake", answer.text)
    assert "scripts/down --purge" in answer.text


def test_a_disk_that_is_full_leaves_nothing_behind(stack: Stack, tmp_path: Path) -> None:
    """A file size limit replaces the full disk: the write fails in the same place."""
    command = f"ulimit -f 64; exec '{SCRIPTS}/tarn' backup '{tmp_path}/lake.tar'"
    answer = run(["bash", "-c", command], timeout_s=120, env=stack.env)
    assert answer.code == 1, answer.text
    assert re.search(
        r"could not write .*lake\.tar\.\w+\.part after [\d.]+ MiB: .*; it is removed", answer.text
    )
    assert list(tmp_path.iterdir()) == []


def test_after_all_that_the_lake_is_as_it_was(stack: Stack) -> None:
    answer = stack.script("tarn", "fsck", timeout_s=120)
    assert answer.code == 0, answer.text
    assert "The lake is whole" in answer.text
