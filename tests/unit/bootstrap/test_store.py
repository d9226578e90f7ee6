"""Bootstrap against a store that keeps users, policies and objects in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tarn.bootstrap.access import RIGHTS, Trial, probe_keys, trials
from tarn.bootstrap.log import configure
from tarn.bootstrap.minio_store import MinioStore
from tarn.bootstrap.store import (
    WAIT_S_MAX,
    Clock,
    PolicyError,
    Settings,
    all_users,
    await_bucket,
    main,
    set_up_users,
    verify,
)
from tarn.core.credentials import STORE_USERS, StoreUser
from tarn.core.errors import (
    CorruptStateError,
    InvalidSettingError,
    TarnError,
    UnavailableError,
)
from tarn.core.exit_codes import FAILED, exit_code
from tarn.core.services import Action, Area

REFERENCE = Path(__file__).parents[3] / "docs" / "reference.md"
USERS = {
    name: StoreUser(access_key=f"TARN{name.upper()}{'A' * (16 - len(name))}", secret_key=f"secret-of-{name}")
    for name in STORE_USERS
}

# Listing is by prefix: what lies among others has no list right of its own.
CELLS = [
    (area, action)
    for area in Area
    for action in Action
    if action is not Action.LIST or area not in (Area.METADATA, Area.WORKSHOP_SPECS)
]


PREFIXES = {
    "catalog/": Area.CATALOG,
    "reaper/v1/holds/": Area.HOLDS,
    "reaper/v1/measured/": Area.MEASURED,
    "reaper/": Area.REAPER,
    "fsck/": Area.FSCK,
    "checkpoints/": Area.CHECKPOINTS,
    "trail/": Area.TRAIL,
    "specs/v1/ingestors/ws-": Area.WORKSHOP_SPECS,
    "specs/": Area.SPECS,
    "credentials/": Area.CREDENTIALS,
}


def area_of(key: str) -> Area:
    found = next((area for prefix, area in PREFIXES.items() if key.startswith(prefix)), Area.DATA)
    return Area.METADATA if key.endswith(".metadata.json") else found


@dataclass
class MemoryStore:
    """Enforces the access rights of the reference's table, or those that a test sets."""

    rights: Mapping[str, Mapping[Area, frozenset[Action]]] = field(default_factory=lambda: RIGHTS)
    policies: dict[str, Mapping[str, object]] = field(default_factory=dict)
    held: dict[str, set[str]] = field(default_factory=dict)
    objects: set[str] = field(default_factory=set)
    bucket: bool = False
    down: int = 0
    admins: frozenset[str] = frozenset()
    fault: Callable[[Trial], None] | None = None
    secrets: dict[str, str] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)

    def ensure_bucket(self) -> bool:
        if self.down:
            self.down -= 1
            raise UnavailableError("no answer", endpoint="http://store")
        made, self.bucket = not self.bucket, True
        return made

    def put_policy(self, name, policy):
        self.policies[name] = policy

    def users(self):
        return {key: frozenset(names) for key, names in self.held.items()}

    def knows(self, user):
        return self.secrets.get(user.access_key) == user.secret_key

    def put_user(self, user):
        self.held.setdefault(user.access_key, set())
        self.secrets[user.access_key] = user.secret_key
        self.written.append(user.access_key)

    def remove_user(self, access_key):
        del self.held[access_key]

    def attach(self, access_key, policy):
        if policy in self.held[access_key]:
            raise TarnError("already attached")
        self.held[access_key].add(policy)

    def detach(self, access_key, policy):
        self.held[access_key].remove(policy)

    def put_object(self, key):
        self.objects.add(key)

    def delete_object(self, key):
        self.objects.discard(key)

    def attempt(self, trial, user):
        if self.fault:
            self.fault(trial)
        name = next((n for n, u in USERS.items() if u == user), None)
        if trial.action is Action.LIST and not trial.key:
            return False
        area = area_of(trial.key)
        allowed = trial.action in self.rights.get(name, {}).get(area, frozenset())
        if trial.action is Action.READ and allowed:
            assert trial.key in self.objects, f"{trial} comes after its object is gone"
        if trial.action is Action.DELETE and allowed:
            self.objects.discard(trial.key)
        return allowed

    def may_administer(self, user):
        return user.access_key in self.admins


def silent():
    return configure("test", "error")


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> Clock:
        def wait(seconds: float) -> None:
            self.now += seconds

        return Clock(now_s=lambda: self.now, wait=wait)


def test_a_fresh_store_gets_users_with_exactly_their_own_policy_and_the_second_run_changes_nothing():
    store = MemoryStore()
    first = set_up_users(store, USERS, {name: {"Version": name} for name in USERS})
    assert store.users() == {user.access_key: frozenset({name}) for name, user in USERS.items()}
    assert store.policies == {name: {"Version": name} for name in USERS}
    assert len(first) == 2 * len(STORE_USERS), "each is made, and given its policy"
    assert set_up_users(store, USERS, {name: {"Version": name} for name in USERS}) == ()


def test_a_user_that_the_store_knows_with_its_secret_is_not_written_again():
    store = MemoryStore()
    set_up_users(store, USERS, {})
    other = {**USERS, "spark": StoreUser(access_key=USERS["spark"].access_key, secret_key="another")}
    store.written.clear()
    set_up_users(store, USERS, {})
    assert store.written == []
    set_up_users(store, other, {})
    assert store.written == [USERS["spark"].access_key]
    assert store.knows(other["spark"])


def test_a_user_with_a_foreign_policy_loses_it():
    store = MemoryStore(held={USERS["ingest"].access_key: {"consoleAdmin", "ingest"}})
    changes = set_up_users(store, USERS, {})
    assert store.held[USERS["ingest"].access_key] == {"ingest"}
    assert "took policy consoleAdmin from ingest" in changes


def test_a_retired_key_is_removed_and_a_user_made_by_hand_stays():
    store = MemoryStore(held={"TARNSPARKBBBBBBBBBBB": {"spark"}, "analyst": {"readonly"}})
    assert "removed the retired TARNSPARKBBBBBBBBBBB" in set_up_users(store, USERS, {})
    assert "TARNSPARKBBBBBBBBBBB" not in store.held
    assert store.held["analyst"] == {"readonly"}


def test_rights_that_hold_pass_and_nothing_is_left_behind():
    store = MemoryStore()
    assert verify(store, USERS, "run") == len(trials("run")) + len(STORE_USERS)
    assert store.objects == set()


@pytest.mark.long
@pytest.mark.parametrize("user", STORE_USERS)
@pytest.mark.parametrize(("area", "action"), CELLS)
def test_every_single_wrong_right_fails_by_name(user: str, area: Area, action: Action):
    wrong = {**RIGHTS, user: {**RIGHTS[user], area: RIGHTS[user][area] ^ {action}}}
    store = MemoryStore(rights=wrong)
    with pytest.raises(PolicyError) as caught:
        verify(store, USERS, "run")
    said = "refused" if action in RIGHTS[user][area] else "allowed"
    for line in caught.value.fields["wrong"]:
        assert line.startswith(f"{user} {action.value} ")
        assert line.endswith(said)
    assert exit_code(caught.value) == FAILED
    assert store.objects == set()


def test_the_users_of_both_files_are_set_up_and_those_of_a_later_release_are_not():
    def entry(name: str) -> dict[str, str]:
        return {"access_key": f"TARN{name.upper():A<16}", "secret_key": "x" * 43}

    first = {name: entry(name) for name in STORE_USERS if name != "reaper"}
    secrets = {
        "store_users.json": json.dumps(first | {"later": entry("later")}),
        "store_users_added.json": json.dumps({"reaper": entry("reaper"), "gateway": entry("gateway")}),
    }
    assert set(all_users(secrets)) == set(STORE_USERS)
    with pytest.raises(CorruptStateError, match=r"\['reaper'\] are missing: run the service init") as caught:
        all_users({**secrets, "store_users_added.json": "{}"})
    assert caught.value.fields["missing"] == ["reaper"]


def test_an_administrator_among_the_users_fails():
    with pytest.raises(PolicyError, match="trino may administer the store"):
        verify(MemoryStore(admins=frozenset({USERS["trino"].access_key})), USERS, "run")


def test_a_store_that_breaks_in_the_middle_is_no_policy_error_and_is_cleaned_up():
    def fault(trial: Trial) -> None:
        if trial.user == "trino":
            raise UnavailableError("gone")

    store = MemoryStore(fault=fault)
    with pytest.raises(UnavailableError, match="gone"):
        verify(store, USERS, "run")
    assert store.objects == set()


def test_the_trials_are_the_reference_table():
    text = REFERENCE.read_text(encoding="utf-8").partition("## Store users")[2].partition("\n## ")[0]
    rows = [[c.strip() for c in line.strip("| ").split("|")] for line in text.splitlines() if "|" in line]
    areas = [Area(re.sub("`", "", column)) for column in rows[0][1:]]
    found = {}
    for row in rows[2:]:
        for user in row[0].split(", "):
            found[user] = {
                area: frozenset(Action(word) for word in cell.split(", ") if word != "\u2013")
                for area, cell in zip(areas, row[1:], strict=True)
            }
    assert found == {user: dict(rights) for user, rights in RIGHTS.items()}


def test_every_user_tries_every_action_in_every_area_and_nobody_touches_anothers_objects():
    tried = trials("run")
    assert len(set(tried)) == len(tried)
    for user in (*STORE_USERS, "anonymous"):
        own = {key for keys in probe_keys(user, "run").values() for key in keys}
        mine = [t for t in tried if t.user == user]
        for action in (Action.READ, Action.WRITE, Action.DELETE):
            assert {t.key for t in mine if t.action is action} == own
        assert any(t.action is Action.LIST and t.key.startswith("catalog/") for t in mine)
    assert not any(t.allowed for t in tried if t.user == "anonymous")


def test_waits_for_the_store_and_says_so_now_and_then(capsys):
    time = FakeTime()
    log = configure("bootstrap", "info")
    assert await_bucket(MemoryStore(down=30), log, time.clock()) is True
    assert time.now == 15.0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["waiting for the store"] * 2
    assert await_bucket(MemoryStore(bucket=True), log, time.clock()) is False


def test_waits_for_the_users_of_a_store_that_has_its_buckets_already():
    class Loading(MemoryStore):
        looks = 0

        def users(self):
            self.looks += 1
            if self.looks < 4:
                raise UnavailableError("XMinioServerNotInitialized")
            return super().users()

    time = FakeTime()
    assert await_bucket(Loading(), silent(), time.clock()) is True, "it was made before"
    assert time.now == 1.5


def test_gives_up_after_the_stated_time():
    time = FakeTime()
    with pytest.raises(UnavailableError, match=r"gave up after 120 s: no answer"):
        await_bucket(MemoryStore(down=10**9), silent(), time.clock())
    assert WAIT_S_MAX <= time.now < WAIT_S_MAX + 1


def test_a_refusal_is_not_waited_for():
    class Refusing(MemoryStore):
        def ensure_bucket(self) -> bool:
            raise TarnError("wrong secret")

    time = FakeTime()
    with pytest.raises(TarnError, match="wrong secret"):
        await_bucket(Refusing(), silent(), time.clock())
    assert time.now == 0


def test_a_wrong_setting_names_the_variable(monkeypatch):
    monkeypatch.setenv("TARN_BUCKET", "Not A Bucket/*")
    with pytest.raises(InvalidSettingError, match="TARN_BUCKET is 'Not A Bucket"):
        Settings.read()


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "http://", "http://minio/path"])
def test_a_wrong_endpoint_is_refused(endpoint: str):
    with pytest.raises(InvalidSettingError, match="TARN_S3_ENDPOINT"):
        MinioStore(endpoint=endpoint, region="us-east-1", bucket="tarn", root=USERS["cli"])


def test_missing_secrets_exit_2_and_name_the_file(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    assert main([]) == 2
    line = json.loads(capsys.readouterr().out)
    assert line["level"] == "error"
    assert str(tmp_path / "root_user") in line["reason"]
