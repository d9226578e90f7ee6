"""Files streamed through containers: complete backups, the service of each command, rejected input."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tarn_host import keeper
from tarn_host.console import StopError
from tarn_host.stack import project

from tarn.keeper.archive import Begin, Writer

HERE = project.Project(name="tarn-x", base="b", own_base=False, settings={})


def whole(missing: int = 0) -> bytes:
    out = io.BytesIO()
    begin = Begin(id="i", bucket="tarn", warehouse="tarn", at="now", version="0")
    writer = Writer(out, begin)
    writer.add("warehouse/x", 3, iter((b"abc",)))
    writer.close(tables=1, missing=[f"s3://tarn/{n:0100}" for n in range(missing)], streams=[])
    return out.getvalue()


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "lake.tar"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("missing", [0, 3_000])
def test_the_closing_record_is_found_at_the_end(tmp_path: Path, missing: int):
    found = keeper.closing_record(written(tmp_path, whole(missing)))
    assert found is not None
    assert (found["objects"], found["bytes"], len(found["missing"])) == (1, 3, missing)


def test_without_its_last_byte_it_is_cut_short(tmp_path: Path):
    data = whole()
    for end in (len(data) - 1, len(data) - 512, len(data) - 1024, len(data) // 2, 600, 0):
        assert keeper.closing_record(written(tmp_path, data[:end])) is None, end
    assert keeper.closing_record(written(tmp_path, data + b"x")) is None


def test_a_name_in_the_data_is_no_closing_record(tmp_path: Path):
    odd = keeper.END_NAME.ljust(512, b"\0") + json.dumps({"objects": 1}).encode()
    assert keeper.closing_record(written(tmp_path, odd)) is None


def test_each_command_has_its_service():
    assert keeper.service_of(["--debug", "fsck", "--json"]) == "keeper"
    assert keeper.service_of(["backup", "x"]) == "keeper"
    assert keeper.service_of(["restore", "x"]) == "bootstrap"
    assert keeper.service_of(["restore", "--help"]) == "cli"
    assert keeper.service_of(["sql", "fsck"]) == "cli"
    assert keeper.on_host(["sql", "backup"]) is None
    assert keeper.on_host(["backup", "--help"]) is None
    assert keeper.on_host(["backup", "x"]) is keeper.backup


@pytest.mark.parametrize("words", [["backup"], ["backup", "a", "b"], ["backup", "--json"]])
def test_one_file_is_asked_for(words: list[str]):
    with pytest.raises(StopError, match="takes one file") as caught:
        keeper.backup(HERE, words)
    assert caught.value.code == 2


def test_a_backup_overwrites_nothing_and_needs_its_folder(tmp_path: Path):
    path = written(tmp_path, b"mine")
    with pytest.raises(StopError, match="exists, and a backup overwrites nothing"):
        keeper.backup(HERE, ["backup", str(path)])
    assert path.read_bytes() == b"mine"
    with pytest.raises(StopError, match="does not exist"):
        keeper.backup(HERE, ["backup", str(tmp_path / "no" / "lake.tar")])


def test_a_backup_that_is_cut_short_is_refused_before_anything_starts(tmp_path: Path):
    path = written(tmp_path, whole()[:-1])
    with pytest.raises(StopError, match="is cut short, or no backup") as caught:
        keeper.restore(HERE, ["restore", str(path)])
    assert "Nothing was changed" in caught.value.what
    with pytest.raises(StopError, match="there is no file"):
        keeper.restore(HERE, ["restore", str(tmp_path / "none.tar")])


def test_a_running_stack_is_not_restored_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    running = [
        keeper.lifecycle.Service(name=name, container="c", state="running", health="healthy", exit_code=0)
        for name in ("minio", "catalog", "ingest")
    ]
    monkeypatch.setattr(keeper.lifecycle, "services", lambda _: running)
    with pytest.raises(StopError, match=r"this stack runs \(catalog, ingest\)"):
        keeper.restore(HERE, ["restore", str(written(tmp_path, whole()))])


class Streaming:
    """Fake container: produces bytes and an exit code, and records how its block ended."""

    def __init__(self, data: bytes, code: int) -> None:
        self.stdout = io.BytesIO(data)
        self.returncode = code
        self.ended_by: BaseException | None = None

    @contextmanager
    def __call__(self, *_: object, **__: object) -> Iterator[Streaming]:
        try:
            yield self
        except BaseException as error:
            self.ended_by = error
            raise


@pytest.mark.parametrize("code", [0, 1])
def test_a_whole_backup_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    monkeypatch.setattr(keeper.run_once, "started", Streaming(whole(), code))
    assert keeper.backup(HERE, ["backup", str(tmp_path / "lake.tar")]) == code
    assert [path.name for path in tmp_path.iterdir()] == ["lake.tar"]
    assert (tmp_path / "lake.tar").stat().st_mode & 0o777 == 0o600


def no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("has_links", [True, False])
def test_two_backups_to_one_name_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
):
    """The second writes while the first does, and ends after it: the first keeps the name."""
    if not has_links:
        monkeypatch.setattr(keeper.os, "link", no_links)
    target = tmp_path / "lake.tar"
    first, second = whole(), whole(missing=1)

    class Overlapping(Streaming):
        @contextmanager
        def __call__(self, *_: object, **__: object) -> Iterator[Streaming]:
            yield self
            monkeypatch.setattr(keeper.run_once, "started", Streaming(first, 0))
            assert keeper.backup(HERE, ["backup", str(target)]) == 0

    monkeypatch.setattr(keeper.run_once, "started", Overlapping(second, 0))
    with pytest.raises(StopError, match=r"lake\.tar appeared .* stays as it is") as caught:
        keeper.backup(HERE, ["backup", str(target)])
    assert target.read_bytes() == first
    (kept,) = (path for path in tmp_path.iterdir() if path != target)
    assert kept.read_bytes() == second
    assert str(kept) in caught.value.fix
    assert kept.stat().st_mode & 0o777 == 0o600


def test_without_hard_links_a_backup_gets_its_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper.os, "link", no_links)
    monkeypatch.setattr(keeper.run_once, "started", Streaming(whole(), 0))
    assert keeper.backup(HERE, ["backup", str(tmp_path / "lake.tar")]) == 0
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [whole()]
    assert (tmp_path / "lake.tar").stat().st_mode & 0o777 == 0o600


def test_half_a_backup_is_removed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper.run_once, "started", Streaming(whole()[:700], 3))
    with pytest.raises(StopError, match="was cut short after") as caught:
        keeper.backup(HERE, ["backup", str(tmp_path / "lake.tar")])
    assert caught.value.code == 3
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_ends_the_container_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    container = Streaming(whole(), 0)
    monkeypatch.setattr(keeper.run_once, "started", container)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeper.os, "fsync", full)
    with pytest.raises(
        StopError, match=r"lake\.tar\.\w+\.part after .* MiB: No space left on device; it is removed"
    ):
        keeper.backup(HERE, ["backup", str(tmp_path / "lake.tar")])
    assert isinstance(container.ended_by, StopError)
    assert list(tmp_path.iterdir()) == []
