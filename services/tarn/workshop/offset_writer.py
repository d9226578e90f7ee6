"""A writer from a topic to a table, small enough to be read in a lesson, and made to be killed.

    python -m tarn.workshop.offset_writer --student ada --topic payments --table tickets --die-at files

It keeps its position in the snapshot of the very commit that adds the rows. With `--position-file` it does
what many programs do, and writes it to a file after the commit. Notebook 04 shows the difference.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from tarn.workshop.lab import Lab
from tarn.workshop.notebooks import notebook
from tarn.workshop.prepared import prepare
from tarn.workshop.settings import read_settings
from tarn.workshop.tables import back_from

STEPS = ("read", "files", "committed")
"""Where it can be killed: messages are read; files are written; the commit is made, and nothing noted yet."""
ENTRY = "workshop.next"
ROWS = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("message", pa.string())])

Position = dict[int, int]


def write(
    lab: Lab,
    topic: str,
    table_name: str,
    *,
    batch: int,
    file: Path | None,
    step: Callable[[str], None],
) -> None:
    """Bring everything that is in a topic into a table, in batches."""
    while True:
        table = lab.catalog.load_table(table_name)
        position = position_in_table(table) if file is None else position_in_file(file)
        messages = [(at, value) for at, value in lab.topics.read(topic) if at[1] >= position.get(at[0], 0)]
        messages = sorted(messages)[:batch]
        if not messages:
            return
        step("read")

        rows = [{"partition": p, "offset": o, "message": json.dumps(value)} for (p, o), value in messages]
        after = {**position, **{p: o + 1 for (p, o), _ in messages}}
        request = prepare(table, pa.Table.from_pylist(rows, ROWS), {ENTRY: json.dumps(after)})
        step("files")

        answer = lab.rest("POST", f"v1/namespaces/{lab.namespace}/tables/{table.name()[-1]}", request)
        if answer.status == 409:
            continue  # somebody else was faster: read the table again
        if answer.status != 200:
            raise RuntimeError(f"the commit was answered with {answer.status}: {answer.message}")
        step("committed")

        if file is not None:
            file.write_text(json.dumps(after))


def position_in_table(table: Table) -> Position:
    """The position that the newest snapshot with one has; from the beginning if there is none."""
    for snapshot in back_from(table, table.current_snapshot()):
        text = None if snapshot.summary is None else snapshot.summary.get(ENTRY)
        if text is not None:
            return {int(p): int(o) for p, o in json.loads(text).items()}
    return {}


def position_in_file(file: Path) -> Position:
    """The position that was noted last; from the beginning if there is none."""
    return {int(p): int(o) for p, o in json.loads(file.read_text()).items()} if file.exists() else {}


def killed_at(step: str | None) -> Callable[[str], None]:
    """What ends this process, as `kill -9` does, when it comes to a step for the second time."""
    seen = dict.fromkeys(STEPS, 0)

    def at(now: str) -> None:
        seen[now] += 1
        if now == step and seen[now] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def main(arguments: list[str] | None = None) -> None:
    """Run the writer."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--student", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--position-file", type=Path)
    parser.add_argument("--die-at", choices=STEPS)
    given: Any = parser.parse_args(arguments)
    lab = Lab(notebook("04"), read_settings(), given.student)
    write(
        lab,
        lab.topic(given.topic),
        lab.name(given.table),
        batch=given.batch,
        file=given.position_file,
        step=killed_at(given.die_at),
    )


if __name__ == "__main__":
    main()
