"""The command line on the host against a running stack, with the cli's own secrets, and a topic that fills.

`scripts/tarn` starts a container for each command, which takes seconds; a test of many commands uses this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarn_host.stack import project

from tarn.adapters.spec_store import SpecStore
from tarn.adapters.store import S3Store
from tarn.controller import declaring
from tarn.core.credentials import ACCESS_KEY_FILE, SECRET_KEY_FILE
from tests.support.stack import Answer, Stack, eventually

with warnings.catch_warnings():
    # kafka-python reads its message schemas with a function that is deprecated in Python 3.11.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import KafkaProducer

COMMAND_S = 240
SECRETS = """
import json, pathlib
folder = pathlib.Path("/run/tarn/secrets")
print(json.dumps({path.name: path.read_text() for path in folder.iterdir() if path.is_file()}))
"""
REMOVE = """
import sys
from tarn.bootstrap.minio_store import MinioStore
from tarn.bootstrap.store import Settings
from tarn.core.credentials import StoreUser

settings = Settings.read()
root = StoreUser(access_key=settings.secret("root_user"), secret_key=settings.secret("root_password"))
store = MinioStore(endpoint=settings.s3_endpoint, region=settings.region, bucket=settings.bucket, root=root)
store.delete_object("KEY")
"""
KILL = """
import os, pathlib, signal, sys, threading, time
enough = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), enough.set()), daemon=True).start()
name = b"tarn.ingest" + b".worker"  # not as one text: it is on this program's own command line
killed, until = 0, time.monotonic() + SECONDS
while time.monotonic() < until and not enough.is_set():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
        except (OSError, ValueError):
            continue
    time.sleep(0.05)
print("killed", killed, flush=True)
os._exit(0)  # the thread may still hold its input
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """A terminal on the host with `tarn` and its settings.

    Attributes:
        stack: the running stack.
        secrets: folder with the cli's secrets.
    """

    stack: Stack
    secrets: Path

    @property
    def env(self) -> dict[str, str]:
        """Environment of the command line."""
        ports = self.stack.ports
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("TARN_")},
            **self.stack.env,
            "TARN_SECRETS_DIR": str(self.secrets),
            "TARN_S3_ENDPOINT": f"http://127.0.0.1:{ports['TARN_PORT_S3']}",
            "TARN_CATALOG_URI": f"http://127.0.0.1:{ports['TARN_PORT_CATALOG']}",
            "TARN_KAFKA_BOOTSTRAP": f"127.0.0.1:{ports['TARN_PORT_KAFKA']}",
            "TARN_INGEST_URI": f"http://127.0.0.1:{ports['TARN_PORT_INGEST']}",
        }

    def tarn(self, *words: str, stdin: str = "", code: int | None = 0) -> Answer:
        """The result of a command.

        Args:
            words: its words.
            stdin: what it reads.
            code: the exit code that is required; None: any.
        """
        done = subprocess.run(
            [str(Path(sys.executable).parent / "tarn"), *words],
            input=stdin.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
            cwd=project.ROOT,
            env=self.env,
            check=False,
        )
        answer = Answer(code=done.returncode, text=done.stdout.decode(errors="replace"))
        assert code is None or answer.code == code, f"tarn {' '.join(words)}: {answer}"
        return answer

    def json(self, *words: str) -> Any:
        """What a command prints with `--json`; progress and warnings are on lines of their own."""
        text = self.tarn(*words, "--json").text
        return json.loads(next(raw for raw in text.splitlines() if raw.startswith(("[", "{"))))

    def specs(self) -> SpecStore:
        """The declared ingestors, by the cli's own keys."""
        store = S3Store(
            bucket="tarn",
            endpoint=self.env["TARN_S3_ENDPOINT"],
            region="us-east-1",
            access_key_id=(self.secrets / ACCESS_KEY_FILE).read_text().strip(),
            secret_access_key=(self.secrets / SECRET_KEY_FILE).read_text().strip(),
        )
        return SpecStore(store, now_ms=lambda: time.time_ns() // 1_000_000, new_id=lambda: uuid.uuid4().hex)

    def shown(self, name: str) -> dict[str, Any]:
        """What `get NAME --json` prints, without the seconds that a command takes to start."""
        return declaring.one(self.specs(), name).to_json()

    def status(self, name: str) -> dict[str, Any]:
        """The status of an ingestor; empty before there is one."""
        found: dict[str, Any] = self.shown(name)["status"] or {}
        return found

    def ready(self, name: str) -> Mapping[str, Any]:
        """The condition `Ready` of an ingestor; empty before there is one."""
        conditions = self.status(name).get("conditions", ())
        return next((one for one in conditions if one["type"] == "Ready"), {})

    def remove_object(self, key: str) -> None:
        """Remove an object of the store, which no user of the lake may do there."""
        answer = self.stack.one_shot("bootstrap", REMOVE.replace("KEY", key))
        assert answer.code == 0, answer.text

    @contextmanager
    def killing_writers(self, *, seconds_max: float) -> Iterator[None]:
        """Kill each writer that is a process as soon as it is there, until the block ends."""
        container = self.stack.container("ingest")
        command = ["docker", "exec", "--interactive", container, "python3", "-c"]
        code = KILL.replace("SECONDS", str(seconds_max))
        with subprocess.Popen([*command, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                yield
            finally:
                out, _ = process.communicate(timeout=seconds_max + 60)
        assert process.returncode == 0
        assert int(out.split()[-1]) > 0, "no writer was killed"

    def producer(self) -> Any:
        """A producer with the cli's login."""
        return KafkaProducer(
            bootstrap_servers=self.env["TARN_KAFKA_BOOTSTRAP"],
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username=(self.secrets / "kafka_user").read_text().strip(),
            sasl_plain_password=(self.secrets / "kafka_password").read_text().strip(),
            acks="all",
            linger_ms=5,
        )


def terminal(stack: Stack, folder: Path) -> Terminal:
    """A terminal whose secrets are in a folder that only this user can read."""
    answer = stack.one_shot("cli", SECRETS)
    lines = [raw for raw in answer.text.splitlines() if raw.startswith("{")]
    assert lines, f"exit code {answer.code}"
    folder.chmod(0o700)
    for name, text in json.loads(lines[-1]).items():
        (folder / name).write_text(text, encoding="utf-8")
    return Terminal(stack=stack, secrets=folder)


@dataclass(slots=True, kw_only=True)
class Feed:
    """Messages of a topic: each has a number of its own.

    Attributes:
        topic: name of the topic.
        partitions: number of its partitions.
        sent: (partition, offset) to number, of what the broker has acknowledged.
        key: key of the message under which its text is.
    """

    topic: str
    partitions: int
    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    key: str = "text"
    _next: int = 0

    def send(self, producer: Any, count: int) -> None:
        """Send so many messages, and wait until the broker has them."""
        waiting = []
        for _ in range(count):
            number, self._next = self._next, self._next + 1
            value = json.dumps({"id": number, self.key: f"text {number}"}).encode()
            waiting.append((number, producer.send(self.topic, value, partition=number % self.partitions)))
        for number, future in waiting:
            meta = future.get(timeout=120)
            self.sent[meta.partition, meta.offset] = number

    @contextmanager
    def flowing(self, producer: Any, *, pause_s: float = 0.05, count: int = 20) -> Iterator[None]:
        """Messages go on arriving within the block: so many, a pause, and again."""
        ended, failed = threading.Event(), []

        def run() -> None:
            try:
                while not ended.wait(pause_s):
                    self.send(producer, count)
            except Exception as e:  # noqa: BLE001 - raised where the block ends
                failed.append(e)

        thread = threading.Thread(target=run, name=f"feed-{self.topic}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(120)
        assert not failed, failed
        assert not thread.is_alive()

    def require_exact(self, stack: Stack, table: str, *, within_s: float = 180) -> int:
        """Require each message to be one row, with its own number; returns how many they are."""
        wanted = sorted((p, o, n) for (p, o), n in self.sent.items())
        count = f"SELECT count(*) FROM {table}"
        eventually(
            lambda: (stack.query(count) or [[0]])[0][0] >= len(wanted),
            timeout_s=within_s,
            what=lambda: f"{len(wanted):,} rows of {table}; it has {stack.query(count)}",
        )
        rows = stack.query(f"SELECT _tarn.partition, _tarn.offset, id FROM {table}")
        assert sorted(tuple(row) for row in rows) == wanted
        return len(wanted)
