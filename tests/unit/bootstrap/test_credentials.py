"""Credentials stay consistent after a crash at any write, a lost volume, or a foreign volume."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.core.credential_plan import applied, plan
from tarn.core.credentials import (
    PRINCIPALS,
    STORE_USERS,
    UIDS,
    SecretFile,
    StoreUser,
    files_of,
    is_tarn_access_key,
    parse_credential,
    parse_store_users,
    without_kafka_user,
)
from tarn.core.errors import CorruptStateError, InvalidError
from tests.support import reference

EMPTY: dict[str, dict[str, str]] = {consumer: {} for consumer in UIDS}
URL_SAFE = set(string.ascii_letters + string.digits + "-_")


def chance(seed: int):
    """A reproducible stream of bytes that never repeats a block."""
    blocks = itertools.count()

    def random_bytes(count: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(blocks)}".encode()).digest(count)

    return random_bytes


def made(seed: int) -> dict[str, dict[str, str]]:
    return applied(EMPTY, plan(EMPTY, random_bytes=chance(seed)))


def store_users(volumes: dict[str, dict[str, str]]) -> dict[str, StoreUser]:
    files = ("store_users.json", "store_users_added.json")
    return {n: u for f in files for n, u in parse_store_users(volumes["bootstrap"][f], f).items()}


def assert_complete_and_agreeing(volumes: dict[str, dict[str, str]]) -> None:
    """Check against docs/reference.md, without the code under test."""
    assert {consumer: set(files) for consumer, files in volumes.items()} == reference.secrets()
    at_kafka = json.loads(volumes["kafka"]["kafka_users.json"])
    assert set(at_kafka) == reference.kafka_users()
    for name in reference.holders("kafka_user") - {"kafka"}:
        assert (volumes[name]["kafka_user"], volumes[name]["kafka_password"]) == (name, at_kafka[name])
    assert volumes["kafka"]["kafka_user"] == "kafka"
    assert volumes["kafka"]["kafka_password"] not in at_kafka.values()
    for file, owner in (("jupyter_token", "jupyter"), ("spark_token", "spark")):
        holders = reference.holders(file)
        assert holders > {owner}
        assert {volumes[name][file] for name in holders} == {volumes[owner][file]}
    for name in ("root_user", "root_password"):
        assert volumes["minio"][name] == volumes["bootstrap"][name]
    users = json.loads(volumes["bootstrap"]["store_users.json"])
    # What a release before the reaper compares, refusing to start if it differs.
    assert set(users) == {"catalog", "ingest", "spark", "trino", "cli", "jupyter", "keeper"}
    added = json.loads(volumes["bootstrap"]["store_users_added.json"])
    assert set(added) == reference.holders("s3_access_key_id") - set(users) | {"vending"}
    assert reference.holders("vending_access_key_id") == {"catalog"}
    for user, keys in (users | added).items():
        holder, stem = ("catalog", "vending") if user == "vending" else (user, "s3")
        assert keys == {
            "access_key": volumes[holder][f"{stem}_access_key_id"],
            "secret_key": volumes[holder][f"{stem}_secret_access_key"],
        }
    principals = json.loads(volumes["catalog"]["principals.json"])
    expected = {}
    for name in reference.holders("catalog_credential"):
        client_id, secret = volumes[name]["catalog_credential"].split(":")
        expected[client_id] = {"name": name, "secret_sha256": hashlib.sha256(secret.encode()).hexdigest()}
    assert principals == expected
    assert len(base64.urlsafe_b64decode(volumes["catalog"]["token_key"])) == 32


def test_first_start_makes_everything_and_the_second_nothing():
    volumes = made(1)
    assert_complete_and_agreeing(volumes)
    assert plan(volumes, random_bytes=chance(2)) == ()


def test_every_secret_has_32_random_bytes_and_its_own_value():
    volumes = made(1)
    users = store_users(volumes)
    secrets = [
        volumes["minio"]["root_password"],
        *(u.secret_key for u in users.values()),
        *(parse_credential(volumes[p]["catalog_credential"], p)[1] for p in PRINCIPALS),
        volumes["jupyter"]["jupyter_token"],
        volumes["spark"]["spark_token"],
        volumes["kafka"]["kafka_password"],
        *json.loads(volumes["kafka"]["kafka_users.json"]).values(),
    ]
    assert len(set(secrets)) == len(secrets) >= 21
    for secret in secrets:
        assert set(secret) <= URL_SAFE
        assert len(base64.urlsafe_b64decode(secret + "=")) == 32
    for user in users.values():
        assert re.fullmatch(r"TARN[A-Z2-7]{16}", user.access_key)
        assert is_tarn_access_key(user.access_key)
    assert not is_tarn_access_key("AKIAIOSFODNN7EXAMPLE")
    assert not is_tarn_access_key(volumes["minio"]["root_user"])


@pytest.mark.parametrize("crash_after", [0, 1, 2])
def test_a_user_in_the_file_of_former_releases_moves_to_its_own_and_keeps_its_keys(crash_after: int):
    """As written by the releases with the first reaper, and rejected by the release before them."""
    volumes = made(1)
    own = volumes["bootstrap"]
    reaper = json.loads(own.pop("store_users_added.json"))
    own["store_users.json"] = json.dumps(json.loads(own["store_users.json"]) | reaper)
    writes = plan(volumes, random_bytes=chance(2))
    assert [(w.consumer, w.name) for w in writes] == [
        ("bootstrap", "store_users_added.json"),
        ("bootstrap", "store_users.json"),
    ]
    after = applied(volumes, writes[:crash_after])
    assert applied(after, plan(after, random_bytes=chance(3))) == made(1)


def test_going_back_to_the_release_before_the_reaper_and_on_again_changes_nothing():
    """That release neither reads nor removes unknown files."""
    volumes = made(1)
    assert plan(volumes, random_bytes=chance(2)) == ()
    lost = {**volumes, "bootstrap": {**volumes["bootstrap"]}}
    del lost["bootstrap"]["store_users_added.json"]
    assert applied(lost, plan(lost, random_bytes=chance(2))) == volumes


def test_an_installation_from_before_vending_gets_its_user_and_keeps_the_rest():
    whole = made(1)
    before = {c: dict(files) for c, files in whole.items()}
    for name in ("vending_access_key_id", "vending_secret_access_key"):
        del before["catalog"][name]
    added = json.loads(before["bootstrap"]["store_users_added.json"])
    before["bootstrap"]["store_users_added.json"] = json.dumps({"reaper": added["reaper"]}, sort_keys=True)
    after = applied(before, plan(before, random_bytes=chance(2)))
    assert_complete_and_agreeing(after)
    for consumer, files in before.items():
        for name in set(files) - {"store_users_added.json"}:
            assert after[consumer][name] == files[name]
    # The release before leaves alone what it does not know, and finds it again.
    assert plan(after, random_bytes=chance(3)) == ()


def test_a_lost_catalog_volume_gets_the_vending_user_back():
    before = made(1)
    for lost in ("catalog", "bootstrap"):
        volumes = {**before, lost: {}}
        after = applied(volumes, plan(volumes, random_bytes=chance(2)))
        assert after["catalog"]["vending_secret_access_key"] == before["catalog"]["vending_secret_access_key"]
        assert_complete_and_agreeing(after)


def test_users_that_only_a_later_release_knows_stay_where_they_are():
    volumes = made(1)
    later = {"access_key": "TARNLATERAAAAAAAAAAA", "secret_key": "x" * 43}
    for file in ("store_users.json", "store_users_added.json"):
        held = volumes["bootstrap"]
        held[file] = json.dumps(json.loads(held[file]) | {f"later in {file}": later}, sort_keys=True)
    assert plan(volumes, random_bytes=chance(2)) == ()


@pytest.mark.long
@given(crashes=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 1000))
def test_a_crash_after_any_write_any_number_of_times_is_healed(crashes: list[int], seed: int):
    volumes: dict[str, dict[str, str]] = EMPTY
    for attempt, crash_after in enumerate(crashes):
        writes = plan(volumes, random_bytes=chance(seed * 100 + attempt))
        after = applied(volumes, writes[:crash_after])
        assert_nothing_handed_out_changed(volumes, after)
        volumes = after
    finished = applied(volumes, plan(volumes, random_bytes=chance(seed * 100 + 99)))
    assert_nothing_handed_out_changed(volumes, finished)
    assert_complete_and_agreeing(finished)


FIRST_START = plan(EMPTY, random_bytes=chance(7))


@pytest.mark.parametrize("crash_after", range(len(FIRST_START) + 1))
def test_a_crash_after_each_single_write_of_the_first_start(crash_after: int):
    assert len(FIRST_START) >= 44
    volumes = applied(EMPTY, FIRST_START[:crash_after])
    finished = applied(volumes, plan(volumes, random_bytes=chance(8)))
    assert_complete_and_agreeing(finished)
    assert_nothing_handed_out_changed(volumes, finished)


def assert_nothing_handed_out_changed(before, after) -> None:
    """Require that no existing file changes, except unused entries of the principals list."""
    for consumer, files in before.items():
        for name, content in files.items():
            if name != "principals.json":
                assert after[consumer][name] == content, f"{consumer}/{name} changed"
    old = json.loads(before["catalog"].get("principals.json", "{}"))
    new = json.loads(after["catalog"].get("principals.json", "{}"))
    for name in PRINCIPALS:
        credential = before[name].get("catalog_credential")
        if credential and old:
            client_id = credential.split(":")[0]
            assert new[client_id] == old[client_id]


@pytest.mark.long
@given(
    lost=st.sets(st.sampled_from(sorted(UIDS)), min_size=1, max_size=2),
    crash_after=st.integers(0, 12),
)
def test_lost_volumes_are_filled_again(lost: set[str], crash_after: int):
    volumes = {c: {} if c in lost else files for c, files in made(1).items()}
    halfway = applied(volumes, plan(volumes, random_bytes=chance(2))[:crash_after])
    finished = applied(halfway, plan(halfway, random_bytes=chance(3)))
    assert_complete_and_agreeing(finished)


@pytest.mark.parametrize("lost", ["minio", "bootstrap"])
def test_the_root_secret_and_the_users_survive_the_loss_of_either_holder(lost: str):
    before = made(1)
    after = applied({**before, lost: {}}, plan({**before, lost: {}}, random_bytes=chance(2)))
    assert after == before


def test_a_lost_catalog_volume_keeps_every_client_credential():
    before = made(1)
    after = applied({**before, "catalog": {}}, plan({**before, "catalog": {}}, random_bytes=chance(2)))
    assert after["catalog"]["principals.json"] == before["catalog"]["principals.json"]
    assert after["catalog"]["s3_secret_access_key"] == before["catalog"]["s3_secret_access_key"]
    assert after["catalog"]["token_key"] != before["catalog"]["token_key"]


def test_a_lost_client_volume_gets_a_new_credential_and_the_old_one_no_longer_counts():
    before = made(1)
    after = applied({**before, "spark": {}}, plan({**before, "spark": {}}, random_bytes=chance(2)))
    old_id, old_secret = before["spark"]["catalog_credential"].split(":")
    assert after["spark"]["catalog_credential"] != f"{old_id}:{old_secret}"
    assert old_id not in json.loads(after["catalog"]["principals.json"])
    assert after["spark"]["s3_secret_access_key"] == before["spark"]["s3_secret_access_key"]


@pytest.mark.parametrize("stranger", [c for c in UIDS if files_of(c)])
def test_a_volume_of_another_copy_is_refused_and_named_and_its_removal_heals(stranger: str):
    volumes = {**made(1), stranger: made(2)[stranger]}
    with pytest.raises(CorruptStateError) as caught:
        plan(volumes, random_bytes=chance(3))
    assert caught.value.fields["remove"] == [f"secrets-{stranger}"]
    assert f"docker volume rm <project>_secrets-{stranger}" in caught.value.message
    for consumer_files in volumes.values():
        for name, content in consumer_files.items():
            assert name == "kafka_user" or content not in caught.value.message
    emptied = {**volumes, stranger: {}}
    assert_complete_and_agreeing(applied(emptied, plan(emptied, random_bytes=chance(4))))


def test_two_strangers_are_both_named():
    other = made(2)
    with pytest.raises(CorruptStateError) as caught:
        plan({**made(1), "spark": other["spark"], "cli": other["cli"]}, random_bytes=chance(3))
    assert sorted(caught.value.fields["remove"]) == ["secrets-cli", "secrets-spark"]


def test_an_installation_from_before_kafka_had_users_gets_them_and_keeps_the_rest():
    whole = made(1)
    before = {
        c: {name: text for name, text in files.items() if not name.startswith("kafka_")}
        for c, files in whole.items()
        if c != "replay"
    } | {"replay": {}}
    after = applied(before, plan(before, random_bytes=chance(2)))
    assert_complete_and_agreeing(after)
    for consumer, files in before.items():
        assert {name: after[consumer][name] for name in files} == files


def test_a_lost_kafka_volume_keeps_the_clients_passwords_and_a_lost_clients_comes_back():
    before = made(1)
    for lost in ("kafka", "ingest", "replay"):
        volumes = {**before, lost: {}}
        after = applied(volumes, plan(volumes, random_bytes=chance(2)))
        for client in ("ingest", "cli", "replay"):
            assert after[client]["kafka_password"] == before[client]["kafka_password"]
        assert_complete_and_agreeing(after)


def test_a_user_whose_entry_was_taken_out_gets_a_new_password_at_both_ends():
    before = made(1)
    volumes = {c: dict(files) for c, files in before.items()}
    del volumes["ingest"]["kafka_password"]
    text = without_kafka_user(volumes["kafka"]["kafka_users.json"], "ingest")
    volumes["kafka"]["kafka_users.json"] = text
    after = applied(volumes, plan(volumes, random_bytes=chance(2)))
    assert_complete_and_agreeing(after)
    assert after["ingest"]["kafka_password"] != before["ingest"]["kafka_password"]
    assert after["cli"] == before["cli"]
    with pytest.raises(InvalidError, match="no such user of Kafka: 'trino'; choose one of"):
        without_kafka_user(text, "trino")


def test_half_a_key_pair_that_nothing_decides_is_replaced():
    volumes = made(1)
    volumes = {
        **volumes,
        "bootstrap": {},
        "spark": {k: v for k, v in volumes["spark"].items() if k != "s3_secret_access_key"},
    }
    assert_complete_and_agreeing(applied(volumes, plan(volumes, random_bytes=chance(2))))


@pytest.mark.parametrize(
    ("consumer", "name", "content", "part"),
    [
        ("minio", "root_password", "minioadmin", "well-known default"),
        ("bootstrap", "root_password", "short", "at least 16"),
        ("spark", "s3_secret_access_key", "", "0 characters"),
        ("spark", "s3_secret_access_key", "x" * 20 + "\n", "wrong kind"),
        ("bootstrap", "store_users.json", "{'not': 'json at all'}", "is not JSON"),
        ("bootstrap", "store_users.json", '["a list, not an object"]', "not a JSON object"),
        (
            "bootstrap",
            "store_users.json",
            '{"spark": {"access_key": "A"}}',
            "needs access_key and secret_key",
        ),
        ("kafka", "kafka_users.json", '{"cli": "too short"}', "needs a password of at least 16"),
        ("kafka", "kafka_users.json", '{"cli": {"password": "none"}}', "needs a password"),
        ("cli", "catalog_credential", "no-colon-in-here-at-all", "client_id:client_secret"),
        ("catalog", "principals.json", "{broken broken broken", "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused_with_its_name_and_the_fix(consumer, name, content, part):
    volumes = made(1)
    volumes[consumer][name] = content
    with pytest.raises(InvalidError, match=re.escape(part)) as caught:
        plan(volumes, random_bytes=chance(2))
    assert f"{consumer}/{name}" in caught.value.message
    assert f"secrets-{consumer}" in caught.value.message


def test_a_volume_that_is_not_mounted_is_refused():
    volumes = {c: f for c, f in EMPTY.items() if c != "trino"}
    with pytest.raises(InvalidError, match="not mounted: secrets-trino"):
        plan(volumes, random_bytes=chance(1))


def test_no_secret_shows_in_a_repr():
    for write in plan(EMPTY, random_bytes=chance(1)):
        assert write.content not in repr(write) or write.name == "kafka_user"
    users = store_users(made(1))
    assert set(users) == set(STORE_USERS)
    for user in users.values():
        assert user.secret_key not in repr(user)


def test_unknown_files_are_left_alone():
    volumes = made(1)
    volumes["spark"]["notes"] = "mine"
    assert plan(volumes, random_bytes=chance(2)) == ()


def test_applied_does_not_touch_its_input():
    volumes = {"spark": {"a": "1"}}
    applied(volumes, (SecretFile(consumer="spark", name="b", content="2", reason="made"),))
    assert volumes == {"spark": {"a": "1"}}
