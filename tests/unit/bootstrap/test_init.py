"""init on real folders: complete files or none, owners, modes, crashes between any two steps, exit codes."""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path

import pytest

from tarn.adapters.service_settings import read_secret
from tarn.bootstrap.init import forget_kafka_password, main, make_credentials
from tarn.bootstrap.volumes import SecretVolumes
from tarn.core.credentials import STORE_USERS, UIDS, files_of
from tarn.core.errors import InvalidError, UnavailableError

FILES = {f"{consumer}/{name}" for consumer in UIDS for name in files_of(consumer)}


class CrashError(Exception):
    """Simulates the end of the process."""


class Owners:
    """Records the owner that each file was given, by inode, so that the test needs no privileges."""

    def __init__(self) -> None:
        self.by_inode: dict[int, tuple[int, int]] = {}

    def __call__(self, descriptor: int, uid: int, gid: int) -> None:
        self.by_inode[os.fstat(descriptor).st_ino] = (uid, gid)

    def of(self, path: Path) -> tuple[int, int] | None:
        return self.by_inode.get(path.stat().st_ino)


class CrashAt:
    def __init__(self, step: int) -> None:
        self.left = step
        self.seen: list[str] = []

    def __call__(self, name: str) -> None:
        self.seen.append(name)
        self.left -= 1
        if self.left == 0:
            raise CrashError(name)


@pytest.fixture
def root(tmp_path: Path):
    for consumer in UIDS:
        (tmp_path / consumer).mkdir()
    yield tmp_path
    for consumer in UIDS:
        (tmp_path / consumer).chmod(0o700)


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_first_start_writes_every_file_and_the_second_none(root: Path):
    owners = Owners()
    first = make_credentials(SecretVolumes(root=root, own=owners))
    assert len(first.written) == len(FILES)
    before = contents(root)
    assert set(before) == FILES
    second = make_credentials(SecretVolumes(root=root, own=owners))
    assert second.written == ()
    assert contents(root) == before


def test_files_belong_to_their_consumer_and_only_it_may_read(root: Path):
    owners = Owners()
    make_credentials(SecretVolumes(root=root, own=owners))
    for consumer, uid in UIDS.items():
        folder = root / consumer
        assert stat.S_IMODE(folder.stat().st_mode) == 0o500
        assert owners.of(folder) == (uid, uid)
        for name in files_of(consumer):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o400, name
            assert owners.of(folder / name) == (uid, uid), name


def test_a_file_that_others_may_read_is_put_right(root: Path):
    make_credentials(SecretVolumes(root=root, own=Owners()))
    (root / "cli" / "catalog_credential").chmod(0o444)
    result = make_credentials(SecretVolumes(root=root, own=Owners()))
    assert result.written == ()
    assert "owner and mode of cli/catalog_credential" in result.tidied
    assert stat.S_IMODE((root / "cli" / "catalog_credential").stat().st_mode) == 0o400


def steps_of_a_first_start(folder: Path) -> int:
    for consumer in UIDS:
        (folder / consumer).mkdir(parents=True)
    counter = CrashAt(10**9)
    make_credentials(SecretVolumes(root=folder, own=Owners(), checkpoint=counter))
    return len(counter.seen)


@pytest.mark.long
def test_a_crash_before_each_step_leaves_no_part_of_a_file_and_the_next_run_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Only the process crashes here; thousands of real fsyncs take a minute on a busy disk.
    monkeypatch.setattr("tarn.bootstrap.volumes.os.fsync", lambda descriptor: None)
    steps = steps_of_a_first_start(tmp_path / "count")
    assert steps == len(FILES) * 5
    for step in range(1, steps + 1):
        root = tmp_path / str(step)
        for consumer in UIDS:
            (root / consumer).mkdir(parents=True)
        with pytest.raises(CrashError):
            make_credentials(SecretVolumes(root=root, own=Owners(), checkpoint=CrashAt(step)))
        halfway = {k: v for k, v in contents(root).items() if not k.endswith(".tarn-tmp")}
        assert all(text for text in halfway.values()), "a file under its final name is whole"
        make_credentials(SecretVolumes(root=root, own=Owners()))
        after = contents(root)
        assert set(after) == FILES
        for path, text in halfway.items():
            if path != "catalog/principals.json":
                assert after[path] == text, f"step {step}: {path} changed"
        users = json.loads(after["bootstrap/store_users.json"])
        users |= json.loads(after["bootstrap/store_users_added.json"])
        assert set(users) == set(STORE_USERS)
        for user, keys in users.items():
            stem = "catalog/vending" if user == "vending" else f"{user}/s3"
            assert after[f"{stem}_secret_access_key"] == keys["secret_key"]
            assert after[f"{stem}_access_key_id"] == keys["access_key"]
        assert after["minio/root_password"] == after["bootstrap/root_password"]


def test_volumes_that_contradict_each_other_exit_5_and_nothing_changes(root: Path, tmp_path, capsys):
    volumes = SecretVolumes(root=root, own=Owners())
    make_credentials(volumes)
    target = root / "ingest" / "s3_secret_access_key"
    target.chmod(0o600)
    target.write_text(secrets.token_urlsafe(32))
    before = contents(root)
    assert main(["--root", str(root)]) == 5
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["level"] == "error"
    assert line["remove"] == ["secrets-ingest"]
    assert "docker volume rm <project>_secrets-ingest" in line["reason"]
    assert contents(root) == before


def test_a_missing_mount_exits_2(root: Path, capsys):
    (root / "kafka").rmdir()
    assert main(["--root", str(root)]) == 2
    assert "not mounted: secrets-kafka" in capsys.readouterr().out
    (root / "kafka").mkdir()
    assert contents(root) == {}


def test_an_unknown_log_level_exits_2(root: Path, monkeypatch, capsys):
    monkeypatch.setenv("TARN_LOG_LEVEL", "loud")
    assert main(["--root", str(root)]) == 2
    assert "TARN_LOG_LEVEL is 'loud'" in capsys.readouterr().err


def test_a_link_in_place_of_a_file_is_not_followed(root: Path):
    (root / "spark" / "s3_access_key_id").symlink_to("/etc/hostname")
    with pytest.raises(UnavailableError, match="could not read"):
        make_credentials(SecretVolumes(root=root, own=Owners()))


def test_a_folder_in_place_of_a_file_is_refused(root: Path):
    (root / "spark" / "s3_access_key_id").mkdir()
    with pytest.raises(InvalidError, match="not a regular file"):
        make_credentials(SecretVolumes(root=root, own=Owners()))


def test_bytes_that_are_not_text_are_refused(root: Path):
    (root / "cli" / "catalog_credential").write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(InvalidError, match="not UTF-8"):
        make_credentials(SecretVolumes(root=root, own=Owners()))


def test_a_full_disk_is_reported_with_the_path_and_leaves_a_state_that_heals(root: Path):
    def full(step: str) -> None:
        if step.startswith("sync ") and "store_users.json" in step:
            raise OSError(28, "No space left on device")

    with pytest.raises(UnavailableError, match=r"store_users\.json: No space left on device"):
        make_credentials(SecretVolumes(root=root, own=Owners(), checkpoint=full))
    make_credentials(SecretVolumes(root=root, own=Owners()))


def test_no_secret_is_logged(root: Path, capsys, monkeypatch):
    def made_without_rights(volumes: SecretVolumes):
        return make_credentials(SecretVolumes(root=volumes.root, own=Owners()))

    monkeypatch.setattr("tarn.bootstrap.init.make_credentials", made_without_rights)
    assert main(["--root", str(root)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines if line["event"] == "secret written"].count("root_password") == 2
    assert lines[-1] == {
        **lines[-1],
        "event": "credentials complete",
        "written": len(FILES),
        "service": "init",
    }
    for path, text in contents(root).items():
        if not path.endswith("/kafka_user"):  # not a secret
            assert text not in json.dumps(lines), path


@pytest.mark.parametrize("crash_at", range(4 * 5))
def test_a_renewed_password_is_the_same_at_both_ends_whatever_crashes(root: Path, crash_at: int):
    make_credentials(SecretVolumes(root=root, own=Owners()))
    before = contents(root)
    crashing = SecretVolumes(root=root, own=Owners(), checkpoint=CrashAt(crash_at))
    try:
        forget_kafka_password(crashing, "ingest")
        make_credentials(crashing)
    except CrashError:
        make_credentials(SecretVolumes(root=root, own=Owners()))
    after = contents(root)
    changed = {path for path, text in after.items() if before[path] != text}
    assert changed in (set(), {"kafka/kafka_users.json", "ingest/kafka_password"})
    users = json.loads(after["kafka/kafka_users.json"])
    assert users["ingest"] == after["ingest/kafka_password"]
    if crash_at == 0:
        assert changed


def test_the_admins_password_and_one_nobody_holds_are_renewed_too(root: Path):
    volumes = SecretVolumes(root=root, own=Owners())
    make_credentials(volumes)
    before = contents(root)
    for user, path in (("kafka", "kafka/kafka_password"), ("health", "kafka/kafka_users.json")):
        forget_kafka_password(volumes, user)
        make_credentials(volumes)
        assert contents(root)[path] != before[path]
    with pytest.raises(InvalidError, match="no such user of Kafka: 'trino'"):
        forget_kafka_password(volumes, "trino")


def test_a_consumer_reads_its_own_secrets(root: Path):
    make_credentials(SecretVolumes(root=root, own=Owners()))
    assert set(files_of("cli")) == {
        *("s3_access_key_id", "s3_secret_access_key", "catalog_credential", "jupyter_token"),
        *("kafka_user", "kafka_password", "spark_token"),
    }
    for name in files_of("cli"):
        assert read_secret(root / "cli" / name) == (root / "cli" / name).read_text(), "exactly as written"


def test_a_check_names_what_is_missing_and_changes_nothing(root: Path, capsys: pytest.CaptureFixture[str]):
    make_credentials(SecretVolumes(root=root, own=Owners()))
    assert main(["--root", str(root), "--check"]) == 0
    (root / "spark").chmod(0o700)
    (root / "spark" / "catalog_credential").unlink()
    before = contents(root)
    capsys.readouterr()
    assert main(["--root", str(root), "--check"]) == 1
    assert json.loads(capsys.readouterr().out) == {"missing": ["spark/catalog_credential"], "fault": ""}
    assert contents(root) == before


def test_a_check_tells_why_init_would_refuse(root: Path, capsys: pytest.CaptureFixture[str]):
    make_credentials(SecretVolumes(root=root, own=Owners()))
    (root / "trino").chmod(0o700)
    (root / "trino" / "s3_secret_access_key").unlink()
    (root / "trino" / "s3_secret_access_key").write_text("the secret of another copy of Tarn")
    capsys.readouterr()
    assert main(["--root", str(root), "--check"]) == 5
    said = json.loads(capsys.readouterr().out)
    assert said["missing"] == []
    assert "secrets-trino" in said["fault"]
    assert "contradict" in said["fault"]
