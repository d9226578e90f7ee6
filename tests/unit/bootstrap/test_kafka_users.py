"""The table of Kafka's users as ACL rules, and the changes that a broker needs to match it exactly."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.core.kafka_users import ADMIN, EVERYBODY, HEALTH_TOPIC, RIGHTS, USERS, Rule, changes, rules
from tarn_demo.flights.events import TOPIC
from tests.support import reference

ROOT = Path(__file__).parents[3]


def test_each_user_has_its_rules_and_the_admin_none() -> None:
    assert set(USERS) == reference.kafka_users()
    assert ADMIN not in RIGHTS
    found = rules()
    assert {rule.principal for rule in found} == {f"User:{user}" for user in (*USERS, "*")}
    assert len(found) == sum(len(right.operations) for held in RIGHTS.values() for right in held)
    assert all(rule.permission == "ALLOW" for rule in found if rule.principal != f"User:{EVERYBODY}")


def test_the_brokers_image_has_what_its_users_are_set_from(tmp_path: Path) -> None:
    """It has no package `tarn`: the files alone must do, where users.py looks for them."""
    dockerfile = (ROOT / "services/kafka/Dockerfile").read_text(encoding="utf-8")
    folder = "/opt/tarn/python"
    (copied,) = re.findall(rf"^COPY --chmod=0644 (.+) {folder}/tarn/core/$", dockerfile, re.MULTILINE)
    (tmp_path / "tarn/core").mkdir(parents=True)
    for name in copied.split():
        shutil.copy(ROOT / name, tmp_path / "tarn/core")
    users = (ROOT / "services/kafka/users.py").read_text(encoding="utf-8")
    (path,) = re.findall(r"^sys\.path\[:0\] = .*$", users, re.MULTILINE)
    (imports,) = re.findall(r"^from tarn\..*$", users, re.MULTILINE)
    code = f"import sys\n{path.replace(folder, str(tmp_path))}\n{imports}\nprint(','.join(USERS))"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert (ran.stdout.strip(), ran.stderr) == (",".join(USERS), "")


def test_the_topics_that_are_named_are_those_of_the_code() -> None:
    replays = {rule.name for rule in rules() if rule.principal == "User:replay"}
    assert replays == {TOPIC}
    assert {rule.name for rule in rules() if rule.principal == "User:health"} == {HEALTH_TOPIC}


def test_only_the_cli_may_delete_everything_and_nobody_may_change_rules_or_users() -> None:
    allowed = [rule for rule in rules() if rule.permission == "ALLOW"]
    deleting = {(r.principal, r.name) for r in allowed if r.operation in ("DELETE", "ALTER")}
    assert deleting == {("User:cli", "*"), ("User:jupyter", "workshop.")}
    assert {r.operation for r in allowed if r.resource == "CLUSTER"} == {"DESCRIBE"}
    assert "ALL" not in {r.operation for r in allowed}


def test_the_brokers_own_topics_are_denied_to_everybody() -> None:
    denied = [rule for rule in rules() if rule.permission == "DENY"]
    assert denied == [
        Rule(
            principal="User:*",
            resource="TOPIC",
            name="__",
            pattern="PREFIXED",
            operation="ALL",
            permission="DENY",
        )
    ]


def test_an_empty_broker_gets_everything() -> None:
    todo = changes((), ())
    assert (todo.set_passwords, todo.remove_users, todo.remove) == (USERS, (), ())
    assert set(todo.add) == rules()


STRANGE = Rule(
    principal="User:stranger",
    resource="TOPIC",
    name="*",
    pattern="LITERAL",
    operation="ALL",
    permission="ALLOW",
)


@pytest.mark.long
@given(
    kept=st.sets(st.sampled_from(sorted(rules()))),
    users=st.sets(st.sampled_from([*USERS, "stranger", "kafka"])),
    strange=st.booleans(),
)
def test_any_broker_ends_with_the_table_and_a_second_time_nothing_is_left(
    kept: set[Rule], users: set[str], strange: bool
) -> None:
    found = kept | ({STRANGE} if strange else set())
    todo = changes(users, found)
    after = (found - set(todo.remove)) | set(todo.add)
    assert after == rules()
    assert set(todo.remove_users) == users - set(USERS)
    again = changes(USERS, after)
    assert (again.add, again.remove, again.remove_users) == ((), (), ())


def test_a_rule_for_one_host_is_another_rule() -> None:
    one = sorted(rules())[0]
    narrowed = replace(one, host="10.0.0.1")
    todo = changes(USERS, (rules() - {one}) | {narrowed})
    assert (todo.add, todo.remove) == ((one,), (narrowed,))
