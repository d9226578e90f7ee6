"""Foreign web pages: they reach 127.0.0.1 through the user's browser, and get nothing from any port."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.stack import Stack, eventually

EVIL = "evil.example"
MARK = "SELECT 'asked by a page of another site'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A published HTTP port.

    Attributes:
        variable: the variable that sets its port.
        path: a path that answers 200 to the service's own page, or to any page if there is no protection.
        names: host names that it accepts, besides the loopback's.
        open_status: its status for its own page.
    """

    variable: str
    path: str
    names: tuple[str, ...] = ()
    open_status: int = 200


DOORS = {
    "trino": Door(variable="TARN_PORT_TRINO", path="/v1/info", names=("trino",)),
    "spark-ui": Door(variable="TARN_PORT_SPARK_UI", path="/jobs/", names=("spark",)),
    "jupyter": Door(variable="TARN_PORT_JUPYTER", path="/login"),
    "catalog": Door(variable="TARN_PORT_CATALOG", path="/v1/config", names=("catalog",), open_status=401),
    "ingest": Door(variable="TARN_PORT_INGEST", path="/status", names=("ingest",)),
    "ingest-api": Door(variable="TARN_PORT_INGEST", path="/v1", names=("ingest",)),
    "gateway": Door(variable="TARN_PORT_GATEWAY", path="/openapi.json", names=("gateway",)),
    "stream": Door(variable="TARN_PORT_STREAM", path="/v1/windows", names=("stream",)),
}


def ask(
    stack: Stack, door: Door, *, method: str = "GET", path: str = "", body: str = "", **headers: str
) -> tuple[int, str]:
    """Status and text of one request to a published port."""
    connection = http.client.HTTPConnection("127.0.0.1", int(stack.ports[door.variable]), timeout=30)
    try:
        connection.request(method, path or door.path, body=body or None, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


@pytest.mark.parametrize("name", sorted(DOORS))
@pytest.mark.parametrize(
    "host",
    [
        EVIL,
        f"{EVIL}:8080",
        f"127.0.0.1.{EVIL}",
        f"localhost.{EVIL}:4040",
        "10.0.0.7",
        "127.0.0.1@evil",
        "[::2]",
    ],
)
def test_a_host_that_is_not_known_is_refused(stack: Stack, name: str, host: str) -> None:
    status, text = ask(stack, DOORS[name], Host=host)
    assert status in (400, 403, 421), text[:300]


@pytest.mark.parametrize("name", sorted(DOORS))
def test_known_hosts_are_answered_at_any_port(stack: Stack, name: str) -> None:
    door = DOORS[name]
    for host in ("127.0.0.1", "localhost", "localhost:1", "127.0.0.1:65535", "[::1]:8080", *door.names):
        assert ask(stack, door, Host=host)[0] == door.open_status, host


@pytest.mark.parametrize("name", ["trino", "spark-ui"])
@pytest.mark.parametrize(
    "origin", [f"http://{EVIL}", "null", "http://127.0.0.1:1", "http://localhost", "file://"]
)
def test_a_page_of_another_origin_is_refused(stack: Stack, name: str, origin: str) -> None:
    """Another port of this machine is another origin too."""
    for method in ("GET", "POST"):
        assert ask(stack, DOORS[name], method=method, Origin=origin)[0] == 403, method


@pytest.mark.parametrize("name", ["trino", "spark-ui"])
def test_its_own_page_is_answered(stack: Stack, name: str) -> None:
    door = DOORS[name]
    own = f"127.0.0.1:{stack.ports[door.variable]}"
    assert ask(stack, door, Host=own, Origin=f"http://{own}")[0] == 200


def test_the_status_api_has_looked_at_the_lake_with_the_rights_of_ingest(stack: Stack) -> None:
    door = DOORS["ingest-api"]

    def looked() -> bool:
        pages = [json.loads(ask(stack, door, path=f"/v1/{name}")[1]) for name in ("tables", "storage")]
        return all(page["lookedAt"] is not None and page["fault"] is None for page in pages)

    eventually(looked, timeout_s=180, what="a look at the lake")


def asked_by_pages(stack: Stack) -> int:
    """Number of statements in Trino's history that came from a page."""
    rows = stack.query("SELECT query FROM system.runtime.queries")
    return sum(1 for (query,) in rows if query == MARK)


def test_no_statement_of_a_foreign_page_is_run(stack: Stack) -> None:
    trino = DOORS["trino"]
    for headers in (
        {"Host": EVIL},
        {"Origin": f"http://{EVIL}"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        said = {"X-Trino-User": "page", "Content-Type": "text/plain", **headers}
        status, _ = ask(stack, trino, method="POST", path="/v1/statement", body=MARK, **said)
        assert status == (421 if "Host" in headers else 403), headers
    assert asked_by_pages(stack) == 0
    stack.query(MARK)
    assert asked_by_pages(stack) == 1, "the control: a statement that is run is found"


PAGE = """<!doctype html><title>a page</title><pre id="result">[]</pre><script>
const attempts = %s;
async function attempt(one) {
  try {
    const answer = await fetch(one.url, one.init || {});
    const text = await answer.text();
    // Trino runs a statement once somebody asks for what comes of it.
    const next = /"nextUri":"[^"]*(\\/v1\\/statement[^"]*)"/.exec(text);
    if (next) await fetch(next[1]);
    return {url: one.url, status: answer.status, type: answer.type, text: text.slice(0, 200)};
  } catch (error) { return {url: one.url, status: 0, type: "failed", text: ""}; }
}
Promise.all(attempts.map(attempt)).then(found => {
  document.getElementById("result").textContent = JSON.stringify(found);
});
</script>"""
STATEMENT = {"method": "POST", "body": MARK, "headers": {"Content-Type": "text/plain"}}


@pytest.fixture(scope="module")
def chromium() -> str:
    """A browser; the test is skipped without one."""
    return browser.required()


@pytest.mark.in_turn(6, "a real browser gets an answer that the same request by a plain client does not get")
@pytest.mark.may_skip("no Chromium to be had")
def test_a_browser_gets_nothing_for_a_page_of_another_site(
    stack: Stack, chromium: str, tmp_path: Path
) -> None:
    """The page fetches every published port of this machine by its address, in cors and no-cors mode."""
    before = asked_by_pages(stack)
    urls = [f"http://127.0.0.1:{port}/" for port in stack.ports.values()]
    urls += [f"http://127.0.0.1:{stack.ports[door.variable]}{door.path}" for door in DOORS.values()]
    statement = f"http://127.0.0.1:{stack.ports['TARN_PORT_TRINO']}/v1/statement"
    attempts: list[dict[str, object]] = [{"url": url} for url in urls]
    attempts += [{"url": statement, "init": {**STATEMENT, "mode": mode}} for mode in ("cors", "no-cors")]
    attempts.append({"url": statement, "init": {**STATEMENT, "headers": {"X-Trino-User": "page"}}})
    with browser.site(PAGE % json.dumps(attempts)) as port:
        found = browser.look(
            chromium, f"http://{EVIL}:{port}/", hosts=f"MAP {EVIL} 127.0.0.1", profile=tmp_path
        )
    assert len(found) == len(attempts)
    assert [one for one in found if one["text"] or one["status"]] == []
    assert asked_by_pages(stack) == before


@pytest.mark.in_turn(6, "a real browser gets an answer that the same request by a plain client does not get")
@pytest.mark.may_skip("no Chromium to be had")
@pytest.mark.parametrize("name", sorted(DOORS))
def test_a_browser_gets_nothing_when_a_name_is_bound_to_this_machine(
    stack: Stack, chromium: str, tmp_path: Path, name: str
) -> None:
    """DNS rebinding: a page was loaded from its own site, then its name resolves to 127.0.0.1."""
    door, before = DOORS[name], asked_by_pages(stack)
    port = stack.ports[door.variable]
    attempts: list[dict[str, object]] = [
        {"url": door.path, "init": {"cache": "no-store"}},
        {"url": "/", "init": {"cache": "no-store"}},
        {"url": "/v1/statement", "init": {**STATEMENT, "headers": {"X-Trino-User": "page"}}},
    ]
    url = f"http://{EVIL}:{port}/page"
    with browser.site(PAGE % json.dumps(attempts)) as site:
        control = browser.look(chromium, url, hosts=f"MAP {EVIL}:{port} 127.0.0.1:{site}", profile=tmp_path)
    assert [one["status"] for one in control] == [200, 200, 200], "the page itself works"
    found = browser.look(chromium, url, hosts=f"MAP {EVIL} 127.0.0.1", profile=tmp_path)
    assert len(found) == len(attempts), "the page came from the browser's cache"
    # 501: ingest's HTTP server does not implement this method.
    assert [one for one in found if one["status"] not in (0, 403, 421, 501)] == []
    assert asked_by_pages(stack) == before
