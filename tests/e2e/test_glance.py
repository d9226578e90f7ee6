"""The page at ingest's port on the whole stack: the stream's windows, a commit as it comes, a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support import browser, chromium
from tests.support.containers import artifacts
from tests.support.stack import Stack, eventually

CANARY = "ops.canary"
ROWS = (
    "[...document.querySelectorAll('#{} tbody tr')].map("
    "(row) => [...row.cells].map((cell) => cell.innerText))"
)
WITHIN_S = 120
MARKS = "[...document.querySelectorAll('.strip circle title')].map((one) => one.textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.tab(browser.required(), tmp_path_factory.mktemp("profile")) as found:
        yield found


def ask(stack: Stack, variable: str, path: str) -> Any:
    with urlopen(f"http://127.0.0.1:{stack.ports[variable]}{path}", timeout=30) as answer:
        return json.loads(answer.read())


def busiest(stack: Stack) -> list[tuple[str, str, int]]:
    """Routes of the stream's newest windows with their flights, most flights first."""
    routes = ask(stack, "TARN_PORT_STREAM", "/v1/windows")["routes"]
    found = [(one["origin"], one["destination"], one["flights"]) for one in routes]
    return sorted(found, key=lambda one: -one[2])[:10]


@pytest.fixture(scope="module")
def windows(stack: Stack) -> Stack:
    """The stack once the stream has windows: of flights that `up` or an earlier test plays, or of some."""
    if not busiest(stack):
        answer = stack.script("tarn", "demo", "replay", "--rate", "1000", "--messages", "3000", timeout_s=240)
        assert answer.code == 0, answer.text
    eventually(
        lambda: busiest(stack),
        timeout_s=WITHIN_S,
        what=lambda: f"windows of stream; {ask(stack, 'TARN_PORT_STREAM', '/v1/windows')!r:.500}",
    )
    return stack


@pytest.mark.may_skip("no Chromium to be had")
def test_the_page_shows_the_lake_as_it_works(windows: Stack, page: chromium.Page) -> None:
    stack, url = windows, f"http://127.0.0.1:{windows.ports['TARN_PORT_INGEST']}/"
    page.open(url)
    page.until("document.querySelector('#state').innerText === 'Healthy'")

    page.until("document.querySelectorAll('#windows tbody tr').length > 0")

    def same_windows() -> bool:
        shown = [(row[0], row[1]) for row in page.run(ROWS.format("windows"))]
        wanted = busiest(stack)
        return len(shown) == len(wanted) and all(
            origin in route and destination in route and flights == f"{count:,}"
            for (route, flights), (origin, destination, count) in zip(shown, wanted, strict=True)
        )

    eventually(same_windows, timeout_s=WITHIN_S, what="the stream's windows on the page")

    def same_alerts() -> bool:
        wanted = [one["message"] for one in ask(stack, "TARN_PORT_STREAM", "/v1/alerts")["alerts"][:3]]
        shown = page.run("[...document.querySelectorAll('.alerts li')].map((one) => one.innerText)")
        return len(shown) == len(wanted) and all(map(str.endswith, shown, wanted))

    eventually(same_alerts, timeout_s=WITHIN_S, what="the stream's newest alerts on the page")

    # A row that is sent now is a mark in the strip, and its commit is the table's newest.
    before = ask(stack, "TARN_PORT_INGEST", f"/v1/tables/{CANARY}")["rows"]
    # Meanwhile, as a mark is there for a minute, and three engines read the row in their time.
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(stack.script, "tarn", "canary", timeout_s=240)
        page.until(f"{MARKS}.some((text) => text.startsWith('{CANARY}: '))", timeout_s=WITHIN_S)
        sent = sending.result()
    assert sent.code == 0, sent.text
    rows = f"{ROWS.format('tables')}.find((row) => row[0] === '{CANARY}')?.[1]"
    page.until(f"Number({rows}?.replaceAll(',', '')) > {before or 0}", timeout_s=WITHIN_S)
    page.picture(artifacts() / "glance.png")

    page.click(f"#tables a[href='#/tables/{CANARY}']")
    page.until("document.querySelector('#snapshots tbody tr') && document.querySelector('#files tbody tr')")
    page.until("document.querySelector('#columns tbody tr')")

    def same_table() -> bool:
        """A merge of small files may come at any time; the page shows it seconds later."""
        look = ask(stack, "TARN_PORT_INGEST", f"/v1/tables/{CANARY}/metadata")
        assert look["uuid"] in page.text(".objects-card")
        return bool(page.run(ROWS.format("snapshots"))[0][0] == look["snapshotId"])

    eventually(same_table, timeout_s=WITHIN_S, what="the table's newest snapshot on the page")
    assert page.run("location.hash") == f"#/tables/{CANARY}"

    # What fsck finds is there with its age, seconds after the run.
    before = ask(stack, "TARN_PORT_INGEST", "/v1/fsck")["result"] or {"beganAt": ""}
    looked = stack.script("tarn", "fsck", "--json", timeout_s=240)
    report = json.loads(next(raw for raw in looked.text.splitlines() if raw.startswith("{")))
    assert (looked.code, report["recorded"]) == (0, True), looked.text

    def newer() -> Any:
        found = ask(stack, "TARN_PORT_INGEST", "/v1/fsck")["result"]
        return found if found and found["beganAt"] > before["beganAt"] else None

    result = eventually(newer, timeout_s=WITHIN_S, what="the result of fsck in the status API")
    figures = ("clean", "tables", "snapshots", "files", "bytes", "orphans")
    assert {name: result[name] for name in figures} == {name: report[name] for name in figures}
    page.run("location.hash = '#/'")
    words = f"{report['tables']:,} tables, {report['snapshots']:,} snapshots"
    page.until(f"document.querySelector('.fsck')?.innerText.includes('{words}')", timeout_s=WITHIN_S)
    page.until("document.querySelector('.fsck .dot')?.innerText === 'Clean'")
    page.until("/(just now|[0-9.]+ (ms|s|min) ago): /.test(document.querySelector('.fsck').innerText)")

    hosts = {address.split("/")[2] for address in page.requests if address.startswith("http")}
    own = {f"127.0.0.1:{stack.ports[name]}" for name in ("TARN_PORT_INGEST", "TARN_PORT_STREAM")}
    assert hosts == own, "the page and the stream, and nobody else"
    assert page.console == []
