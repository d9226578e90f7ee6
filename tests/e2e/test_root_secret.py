"""The store's root secret is in minio and bootstrap, and nowhere else."""

from __future__ import annotations

import json

import pytest

from tarn.core.credentials import UIDS, files_of
from tests.support.secrets import holders
from tests.support.stack import ENGINE_S, LONG_RUNNING, Stack, run

READ_ROOT = (
    "import json, pathlib\n"
    "folder = pathlib.Path('/run/tarn/secrets')\n"
    "print(json.dumps([(folder / n).read_text().strip() for n in ('root_user', 'root_password')]))\n"
)


pytestmark = pytest.mark.in_turn(3, "a service has the root secret, or may read a secret of another")


@pytest.fixture(scope="module")
def root(stack: Stack) -> tuple[str, str]:
    answer = stack.one_shot("bootstrap", READ_ROOT)
    assert answer.code == 0, answer.text
    user, password = json.loads(answer.text.splitlines()[-1])
    assert len(password) >= 32
    assert user not in ("minioadmin", "admin", "root")
    return user, password


def test_the_search_finds_it_where_it_belongs(stack: Stack, root: tuple[str, str]) -> None:
    assert "/run/tarn/secrets:secrets/root_password" in holders(stack, "minio", root[1])


@pytest.mark.parametrize("service", [name for name in LONG_RUNNING if name != "minio"])
def test_it_is_nowhere_else(stack: Stack, root: tuple[str, str], service: str) -> None:
    for secret in root:
        assert holders(stack, service, secret) == []


def test_minio_and_bootstrap_do_not_show_it(stack: Stack, root: tuple[str, str]) -> None:
    for service in ("minio", "bootstrap", "init"):
        for secret in root:
            assert secret not in json.dumps(stack.inspect(service)), service
            assert secret not in run(["docker", "logs", stack.container(service)], timeout_s=ENGINE_S).text, (
                service
            )


def test_every_secret_file_is_its_consumers_alone(stack: Stack) -> None:
    for service in sorted(set(LONG_RUNNING) & set(UIDS)):
        listed = stack.inside(service, "find", "/run/tarn/secrets", "-type", "f", "-printf", "%m %U %f\n")
        assert listed.code == 0, listed.text
        uid = stack.said_inside(service, "id", "-u").strip()
        rows = [row.split() for row in listed.text.splitlines()]
        assert {name for _, _, name in rows} == set(files_of(service)), service
        for mode, owner, name in rows:
            assert (mode, owner) == ("400", uid), f"{service}: {name} has mode {mode} and owner {owner}"
