"""The first checks of scripts/up: each error has the value, the requirement and the fix."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tarn_host import shell
from tarn_host.stack import checks, needs


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def test_little_disk_names_value_need_and_fix() -> None:
    [problem] = checks.disk("/data", images_there=False, free_mib=123)
    assert "123 MiB" in problem.what
    assert f"{checks.DISK_MIB_COLD} MiB" in problem.what
    assert "/data" in problem.what
    assert "TARN_NEED_DISK_MIB" in problem.fix


def test_disk_needs_less_once_the_images_are_there() -> None:
    between = (checks.DISK_MIB_COLD + checks.DISK_MIB_WARM) // 2
    assert checks.disk("/data", images_there=True, free_mib=between) == []
    assert len(checks.disk("/data", images_there=False, free_mib=between)) == 1


def test_unknown_disk_and_memory_pass() -> None:
    assert checks.disk("/data", images_there=False, free_mib=None) == []
    assert checks.memory(None, running=False) == []


def test_little_memory_refuses_a_start_but_not_what_runs() -> None:
    [problem] = checks.memory(500, running=False)
    assert "500 MiB" in problem.what
    assert str(needs.memory_mib()) in problem.what
    assert checks.memory(500, running=True) == []


def test_the_environment_names_other_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARN_NEED_DISK_MIB", "999999999")
    monkeypatch.setenv("TARN_NEED_MEMORY_MIB", "1")
    assert "999999999 MiB" in checks.disk("/data", images_there=True, free_mib=10**8)[0].what
    assert checks.memory(2, running=False) == []


def test_a_taken_port_names_variable_and_process(listener: int) -> None:
    [problem] = checks.ports({"TARN_PORT_S3": str(listener)}, frozenset(), {})
    assert str(listener) in problem.what
    assert f"(pid {os.getpid()})" in problem.what
    assert "TARN_PORT_S3=" in problem.fix


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the name is read from /proc")
def test_a_process_whose_name_is_not_utf_8_is_named_too(tmp_path: Path) -> None:
    """The kernel cuts a name after 15 bytes, be it within a letter."""
    program = os.fsencode(tmp_path) + b"/abcdefghijklmn\xc3\xb6"
    os.symlink(os.path.realpath(sys.executable), program)
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
    )
    code += "input()"
    with subprocess.Popen(
        [program, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        assert checks.process_on(port) == f"abcdefghijklmn\ufffd (pid {process.pid})"
        process.kill()


def test_a_port_held_by_a_container_names_it(listener: int) -> None:
    [problem] = checks.ports(
        {"TARN_PORT_S3": str(listener)}, frozenset(), {listener: "container other-minio-1"}
    )
    assert "container other-minio-1" in problem.what


def test_a_port_of_our_own_containers_is_fine(listener: int) -> None:
    assert checks.ports({"TARN_PORT_S3": str(listener)}, frozenset({listener}), {}) == []


@pytest.mark.parametrize("text", ["0", "65536", "http", "-1", ""])
def test_what_is_no_port_is_refused(text: str) -> None:
    [problem] = checks.ports({"TARN_PORT_S3": text}, frozenset(), {})
    assert f"TARN_PORT_S3={text}" in problem.what


def test_two_variables_with_one_port_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_taken", lambda port: False)
    problems = checks.ports({"TARN_PORT_A": "20001", "TARN_PORT_B": "20001"}, frozenset(), {})
    assert [p.what for p in problems] == ["TARN_PORT_B and TARN_PORT_A are both 20001"]


def test_the_small_profile_needs_less_memory_and_is_proposed() -> None:
    between = (needs.memory_mib(small=True) + needs.memory_mib()) // 2
    assert checks.memory(between, running=False, small=True) == []
    [problem] = checks.memory(between, running=False)
    assert "scripts/up --small" in problem.fix


def test_a_free_block_leaves_out_every_block_with_a_taken_port(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["TARN_PORT_S3", "TARN_PORT_TRINO"]
    monkeypatch.setattr(checks, "is_taken", lambda port: port in (20_003, 20_100))
    assert checks.free_block(names) == {"TARN_PORT_S3": "20200", "TARN_PORT_TRINO": "20203"}
    monkeypatch.setattr(checks, "is_taken", lambda port: True)
    assert checks.free_block(names) == {}


def test_published_ports_are_parted_into_own_other_copies_and_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        "tarn-1\t/a/tarn\ttarn-1-minio-1\ttarn/minio:tarn-1\t127.0.0.1:9000->9000/tcp",
        "tarn-2\t/b/tarn\ttarn-2-minio-1\ttarn/minio:tarn-2\t127.0.0.1:9100->9000/tcp",
        "\t\tweb\tnginx\t0.0.0.0:8080-8081->80-81/tcp, :::8080-8081->80-81/tcp",
    ]
    monkeypatch.setattr(checks.shell, "capture", lambda *a, **k: shell.Result(0, "\n".join(rows), ""))
    found = checks.published("tarn-1")
    assert found.own == {9000}
    assert found.tarns == {9100: "/b/tarn"}
    assert found.holders == {
        9100: "container tarn-2-minio-1 of the copy of Tarn in /b/tarn",
        8080: "container web",
        8081: "container web",
    }


def test_a_folder_that_this_user_may_not_look_into_is_measured_by_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's folders under userns-remap, for a user of the group docker."""
    hidden = tmp_path / "hidden"
    real = os.stat

    def refused(path: Any, *more: Any, **others: Any) -> os.stat_result:
        if str(path).startswith(str(hidden)):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **others)

    monkeypatch.setattr(os, "stat", refused)
    assert checks.free_mib(str(hidden / "docker")) == checks.free_mib(str(tmp_path))
