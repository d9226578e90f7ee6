"""JupyterLab opens only with its token, and keeps what its users write."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.secrets import holders
from tests.support.stack import Stack, eventually

CONTENTS = "/api/contents/tarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A response of the server."""

    status: int
    headers: dict[str, str]
    body: bytes
    cookies: tuple[str, ...]


@pytest.fixture(scope="module")
def token(stack: Stack) -> str:
    """The token as users get it: from the address that `scripts/tarn env` prints."""
    answer = stack.script("tarn", "env", "--json", timeout_s=120)
    assert answer.code == 0, answer.text
    url = urlsplit(json.loads(answer.text.splitlines()[-1])["TARN_JUPYTER_URL"])
    assert url.netloc == f"127.0.0.1:{stack.ports['TARN_PORT_JUPYTER']}"
    (found,) = parse_qs(url.query)["token"]
    assert len(found) == 43, "32 random bytes, URL-safe"
    return found


def ask(
    stack: Stack, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: str = ""
) -> Page:
    connection = http.client.HTTPConnection("127.0.0.1", int(stack.ports["TARN_PORT_JUPYTER"]), timeout=30)
    try:
        connection.request(method, path, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        pairs = answer.getheaders()
        cookies = tuple(value.partition(";")[0] for name, value in pairs if name.lower() == "set-cookie")
        found = {name.lower(): value for name, value in pairs}
        return Page(status=answer.status, headers=found, body=answer.read(), cookies=cookies)
    finally:
        connection.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


def test_the_address_of_env_opens_the_laboratory_and_its_notebooks(stack: Stack, token: str) -> None:
    page = ask(stack, f"/lab/tree/tarn/start.md?token={token}")
    assert page.status == 200
    assert b"JupyterLab" in page.body
    listed = json.loads(ask(stack, CONTENTS, headers=bearer(token)).body)
    assert {"start.md", "00_tour.ipynb"} <= {entry["name"] for entry in listed["content"]}


@pytest.mark.parametrize("path", [CONTENTS, "/api/kernels", "/api/status", "/files/tarn/00_tour.ipynb"])
def test_without_the_token_nobody_comes_in(stack: Stack, token: str, path: str) -> None:
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert ask(stack, path, headers=bearer(token)).status == 200, "else this would prove nothing"
    for headers in ({}, bearer(wrong), bearer(""), bearer(token[:-1])):
        page = ask(stack, path, headers=headers)
        refused = page.status in (401, 403)
        to_login = page.status == 302 and page.headers["location"].startswith("/login")
        assert refused or to_login, (headers and "with a wrong token", page.status)
        assert b"cells" not in page.body
    assert ask(stack, f"{path}?token={wrong}").status in (302, 403)


def test_pages_lead_to_the_login(stack: Stack, token: str) -> None:
    del token
    for path in ("/", "/lab", "/files/tarn", "/lab/tree/tarn/00_tour.ipynb"):
        page = ask(stack, path)
        assert page.status == 302
        while page.status == 302 and not page.headers["location"].startswith("/login"):
            page = ask(stack, page.headers["location"])
        assert page.headers["location"].startswith("/login?"), path


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8888", "10.0.0.7:8888", "jupyter:8888"])
def test_a_foreign_host_header_is_refused_even_with_the_token(stack: Stack, token: str, host: str) -> None:
    """A page of another site whose name resolves to 127.0.0.1 gets nothing."""
    assert ask(stack, CONTENTS, headers={**bearer(token), "Host": host}).status == 403
    assert ask(stack, f"/lab?token={token}", headers={"Host": host}).status == 403
    for own in ("localhost", "127.0.0.1:1", "[::1]:8888"):
        assert ask(stack, CONTENTS, headers={**bearer(token), "Host": own}).status == 200, own


def test_another_sites_page_can_neither_read_nor_write(stack: Stack, token: str) -> None:
    """With the browser's cookies alone: no response for other origins (CORS), and no changes (XSRF)."""

    def kernels() -> set[str]:
        return {one["id"] for one in json.loads(ask(stack, "/api/kernels", headers=bearer(token)).body)}

    before = kernels()
    login = ask(stack, f"/lab?token={token}")
    cookies = "; ".join(login.cookies)
    assert "username-" in cookies
    foreign = {"Cookie": cookies, "Origin": "http://evil.example"}
    assert ask(stack, CONTENTS, headers={"Cookie": cookies}).status == 200, "the cookie is good"
    page = ask(stack, CONTENTS, headers=foreign)
    assert page.status in (403, 404)
    assert not [name for name in page.headers if name.startswith("access-control-")]
    assert "frame-ancestors 'self'" in page.headers["content-security-policy"]
    made = ask(stack, "/api/contents/work", method="POST", headers=foreign, body='{"type": "notebook"}')
    assert made.status in (403, 404)
    made = ask(stack, "/api/kernels", method="POST", headers={"Cookie": cookies}, body="{}")
    assert made.status == 403
    assert kernels() == before


def test_there_is_no_terminal_and_no_password(stack: Stack, token: str) -> None:
    assert ask(stack, "/api/terminals", method="POST", headers=bearer(token), body="{}").status == 404
    page = ask(stack, "/login")
    assert b"new_password" not in page.body, "a password could be set by whoever finds the token in a history"


def test_the_token_is_in_two_secret_files_and_nowhere_else(stack: Stack, token: str) -> None:
    """After requests that carried it in a header and in an address."""
    ask(stack, f"/lab?token={token}")
    ask(stack, f"/nowhere?token={token}")
    for service in ("jupyter", "init", "catalog", "spark", "trino"):
        wanted = ["/run/tarn/secrets:secrets/jupyter_token"] if service == "jupyter" else []
        found = holders(stack, service, token)
        assert [name for name in found if not name.startswith("/secrets/")] == wanted, service


def test_the_secrets_of_others_are_not_in_the_container(stack: Stack) -> None:
    listed = stack.said_inside("jupyter", "find", "/run/tarn/secrets", "-type", "f", "-printf", "%f\n")
    assert sorted(listed.split()) == [
        "catalog_credential",
        "jupyter_token",
        "kafka_password",
        "kafka_user",
        "s3_access_key_id",
        "s3_secret_access_key",
        "spark_token",
    ]
    environment = stack.said_inside("jupyter", "sh", "-c", "cat /proc/[0-9]*/environ | tr '\\0' '\\n'")
    names = {line.partition("=")[0] for line in environment.splitlines()}
    assert not [n for n in names if "TOKEN" in n or "SECRET_ACCESS" in n or "PASSWORD" in n]


def test_what_users_write_outlives_the_container_and_ours_cannot_be_written(stack: Stack, token: str) -> None:
    book = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    body = json.dumps({"type": "notebook", "format": "json", "content": book})
    path = "/api/contents/work/kept.ipynb"
    assert ask(stack, path, method="PUT", headers=bearer(token), body=body).status in (200, 201)
    before = ask(stack, f"{CONTENTS}/00_tour.ipynb", headers=bearer(token)).body
    assert json.loads(before)["writable"] is False
    answer = stack.inside("jupyter", "sh", "-c", "echo > /notebooks/tarn/00_tour.ipynb")
    assert answer.code != 0
    assert "Read-only file system" in answer.text or "Permission denied" in answer.text
    old = stack.container("jupyter")
    made = stack.compose("up", "--detach", "--no-deps", "--no-build", "--force-recreate", "jupyter")
    assert made.code == 0, made.text
    assert stack.container("jupyter") != old
    eventually(
        lambda: stack.health().get("jupyter") == "healthy",
        timeout_s=240,
        what=lambda: f"JupyterLab healthy again; {stack.health()}, {stack.last_probe('jupyter')}",
    )
    kept = ask(stack, f"{path}?content=0", headers=bearer(token))
    assert kept.status == 200, "the same token, the same work"
    assert ask(stack, path, method="DELETE", headers=bearer(token)).status == 204
