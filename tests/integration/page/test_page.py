"""The page in a real Chromium over a lake in memory: every view, updates, states, keyboard, contrast."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tarn.core.audit.model import Kind
from tarn.core.errors import UnavailableError
from tarn.core.fsck_record import FINDINGS_MAX, RunState
from tarn.ingest.fsck_look import FsckSeen
from tarn.ingest.status import State
from tests.support.chromium import WAIT_S, Page
from tests.support.fsck_records import a_result, a_run, finding, seen
from tests.support.glance import LETTERS, shown
from tests.support.lake import TABLE
from tests.support.stack import eventually, free_ports
from tests.support.status_api import LakeTables

pytestmark = pytest.mark.may_skip("no Chromium to be had")
EVIL = "ops.<img src=x onerror=alert(1)>"
CONTRAST_MIN = 4.5
UNKNOWN = "\u2013"

CELLS = """(id) => [...document.querySelectorAll(`#${id} tbody tr`)].map(
    (row) => [...row.cells].map((cell) => cell.innerText))"""
CONTRAST = """(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (front, back) => ({
    r: front.r * front.a + back.r * (1 - front.a),
    g: front.g * front.a + back.g * (1 - front.a),
    b: front.b * front.a + back.b * (1 - front.a),
    a: 1,
  });
  const light = ({ r, g, b }) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((v) => linear(v / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, front) => over(front, back), { r: 255, g: 255, b: 255, a: 1 });
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const style = getComputedStyle(node);
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    if (node.closest(".skip, noscript, button:disabled")) continue;
    const ink = parse(node.closest("svg") ? style.fill : style.color);
    const back = ground(node.closest("svg") ? node.closest("svg").parentElement : node);
    const [one, other] = [light(over(ink, back)), light(back)].sort((a, b) => b - a);
    found.push([(one + 0.05) / (other + 0.05), walker.currentNode.textContent.trim().slice(0, 60)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()"""


def cells(page: Page, name: str) -> list[list[str]]:
    """The texts of a table's rows."""
    found: list[list[str]] = page.run(f"({CELLS})({json.dumps(name)})")
    return found


def row(page: Page, name: str, first: str) -> list[str]:
    (found,) = [one for one in cells(page, name) if one[0] == first]
    return found


def ready(page: Page, url: str) -> None:
    page.open(url)
    page.until("document.querySelector('#state').innerText === 'Healthy'")


def test_the_overview_shows_what_the_api_answers(page: Page) -> None:
    with shown() as lake:
        lake.commit(3, bad=1)
        lake.lake.registry.update_audit(
            TABLE, at_ms=1_764_000_000_000, snapshot_id=1, files=1, read=1, missing=0, doubled=0, unknown=0
        )
        ready(page, lake.url)
        page.until("document.querySelectorAll('#tables tbody tr').length === 2")
        table = row(page, "tables", TABLE)
        assert (table[1], table[4], table[7]) == ("3", "1", "orders")
        assert table[2].endswith("ms"), "freshness of the batch"
        ingestor = row(page, "ingestors", "orders")
        assert (ingestor[1], ingestor[5:]) == ("Running", ["3", "0", "0", "1", "1/1"])
        (commit,) = cells(page, "commits")
        assert (commit[1], commit[2], commit[3], commit[7]) == (TABLE, "batch", "3", "committed")
        assert {(one[0], one[1]) for one in cells(page, "services")} == {
            (name, "answers") for name in ("catalog", "kafka", "store")
        }
        assert row(page, "audits", TABLE)[1:5] == ["whole", "0", "0", "1"]
        assert page.run("document.querySelectorAll('.strip circle').length") == 1
        assert "no service stream" in page.text(".windows-card")
        assert page.run("document.querySelector('.faults-card').hidden") is True
        hosts = {address.split("/")[2] for address in page.requests if address.startswith("http")}
        assert hosts == {lake.url.split("/")[2]}, "it asks nobody else"
        paths = {"/" + address.split("/", 3)[3].partition("?")[0] for address in page.requests}
        assert all(path.startswith(("/v1", "/page/")) or path == "/" for path in paths), paths


def test_a_commit_appears_by_itself_and_rates_are_made_of_counters(page: Page) -> None:
    with shown() as lake:
        lake.commit(1)
        ready(page, lake.url)
        assert row(page, "tables", TABLE)[1] == "1"
        lake.commit(40)
        page.until(f"({CELLS})('tables').some((row) => row[1] === '41')")
        # At once: it is that of the last ten seconds.
        rate = page.until(f"Number(({CELLS})('ingestors').find((row) => row[0] === 'orders')[3])")
        commits = len(lake.lake.registry.commits.last(100).commits)
        page.until(f"document.querySelectorAll('.strip circle').length === {commits}")
        assert 40 / 10.5 <= rate <= 40 / 1.5, "40 rows within the seconds since the first poll"
        tiles = page.text(".tiles")
        assert "41" in tiles.split()
        page.click("#pause")
        page.until("document.querySelector('#state').innerText === 'Paused'")
        lake.commit(1)
        assert page.run("new Promise((done) => setTimeout(() => done(1), 2500))") == 1
        assert row(page, "tables", TABLE)[1] == "41"
        assert page.run("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
        page.click("#pause")
        page.until(f"({CELLS})('tables').some((row) => row[1] === '42')")


LAG = "[...document.querySelectorAll('.tile')].find((one) => one.querySelector('dt').textContent === 'Lag')"


def test_a_lag_that_is_not_known_is_never_counted_as_none(page: Page) -> None:
    tile = f"{LAG}.querySelector('dd').textContent"
    with shown() as lake:
        lake.commit(3)
        ready(page, lake.url)
        page.until(f"{tile} === '0'")
        registry = lake.lake.registry
        registry.update(
            "late", state=State.WAITING, reason="Unavailable", message="no answer", measured=False
        )
        page.until(f"{tile} === '{UNKNOWN}'")
        registry.update("busy", state=State.RUNNING, measured=True, committed={0: 5}, ends={0: 12})
        page.until(f"{tile} === 'at least 7'")
        registry.remove("late")
        page.until(f"{tile} === '7'")


def test_a_rate_is_not_that_of_a_pause(page: Page) -> None:
    """Behind a pause of the page the rate of the last seconds is not known before the next poll."""
    taken = """import('/page/rates.js').then(({ Rates }) => {
      const rates = new Rates();
      return [[0, 0], [2000, 20], [4000, 40], [600000, 40], [602000, 40], [604000, 60]].map(
        ([atMs, value]) => rates.take('rows', atMs, value));
    })"""
    with shown() as lake:
        ready(page, lake.url)
        assert page.run(taken) == [None, 10, 10, None, 0, 5]


def test_a_click_shows_a_tables_history_files_and_objects(page: Page) -> None:
    with shown() as lake:
        for _ in range(3):
            lake.commit(2)
        ready(page, lake.url)
        page.click("#tables tbody a")
        page.until("document.querySelector('#columns tbody tr')")
        page.until("document.querySelector('#files tbody tr')")
        assert page.run("document.title") == f"{TABLE} · Tarn"
        assert page.run("document.activeElement.id") == "subject"
        state = lake.lake.table()
        snapshots = cells(page, "snapshots")
        assert [one[0] for one in snapshots] == [str(one["snapshot-id"]) for one in state.ancestors()]
        assert snapshots[0][3] == "2"
        assert "main" in snapshots[0][9]
        files = {f"{state.root}/{one[0]}" for one in cells(page, "files")}
        assert files == {entry.data_file.file_path for entry in lake.lake.files()}
        assert [one[0] for one in cells(page, "columns")] == ["id", "at", "_tarn"]
        assert state.root in page.text(".objects-card")
        lake.commit(5)
        page.until(f"({CELLS})('snapshots').length === {len(snapshots) + 1}")
        page.run("history.back()")
        page.until("document.querySelector('#tables tbody tr')")
        page.click("#ingestors tbody a")
        page.until("document.querySelector('#partitions tbody tr')")
        assert cells(page, "partitions") == [["0", "11", "11", "0"]]
        assert cells(page, "readers")[0][:2] == ["orders", "Running"]


def test_a_table_that_is_not_there_is_said_once_and_its_command_can_be_typed(page: Page) -> None:
    """As from a bookmark of a table that was dropped; its name has a blank and a quotation mark."""
    with shown() as lake:
        ready(page, lake.url)
        page.run('location.hash = `#/tables/${encodeURIComponent("no such.ada\'s")}`')
        page.until("document.querySelector('.history-card').innerText.includes('there is no table')")
        assert page.text(".history-card").count("GET /v1/tables lists those that there are") == 1
        found = page.run(
            "import('/page/format.js').then(({ typed }) => [\"no such.ada's\", 'a-b.c_1'].map(typed))"
        )
        assert found == [r"'no such.ada'\''s'", "a-b.c_1"]
        page.console[:] = [line for line in page.console if "404" not in line]


def test_names_and_messages_are_written_as_text(page: Page) -> None:
    class Evil(LakeTables):
        def state(self, table: str) -> Any:
            return super().state(TABLE)

    with shown() as other:
        tables = Evil(other.lake, TABLE, EVIL)
    message = '"><script>alert(2)</script><img src=x onerror=alert(3)>'
    with shown(tables=tables) as lake:
        tables._lake = lake.lake
        lake.lake.registry.update(EVIL, state=State.STOPPED, reason="Evil", message=message, table=EVIL)
        lake.check(kafka=message)
        page.open(lake.url)
        page.until(f"({CELLS})('tables').length === 2")
        assert EVIL in [one[0] for one in cells(page, "tables")]
        assert message in [one[2] for one in cells(page, "services")]
        assert message in page.text("#notice")
        page.run(f"location.hash = '#/tables/' + encodeURIComponent({json.dumps(EVIL)})")
        page.until("document.querySelector('#snapshots tbody tr')")
        assert page.text("#subject").endswith(EVIL)
        page.run(f"location.hash = '#/ingestors/' + encodeURIComponent({json.dumps(EVIL)})")
        page.until("document.querySelector('.detail .note')?.innerText.length > 0")
        assert message in page.text(".detail .note")
        assert page.run("document.querySelectorAll('img, main script, #notice script').length") == 0


def test_the_policy_refuses_what_a_mistake_would_let_in(page: Page) -> None:
    with shown() as lake:
        ready(page, lake.url)
        tries = {
            "markup": "document.body.innerHTML = '<b>x</b>'",
            "code": "new Function('return 1')()",
            "inline": "(() => { const s = document.createElement('script'); s.text = 'window.bad = 1';"
            " document.body.append(s); return window.bad ?? 'refused' })()",
        }
        for name, script in tries.items():
            found = page.run(f"(() => {{ try {{ return {script} }} catch (e) {{ return 'refused' }} }})()")
            assert found == "refused", name
        other = page.run("fetch('http://127.0.0.1:1/').then(() => 'sent', (e) => String(e))")
        assert "Failed to fetch" in other
        assert any("Content Security Policy" in line for line in page.console)
        page.console.clear()


def test_an_empty_lake_says_what_to_do(page: Page) -> None:
    with shown(names=(), fsck=seen) as lake:
        lake.lake.registry.remove("orders")
        ready(page, lake.url)
        for part, words in {
            ".tables-card": "docs/first-stream.md",
            ".ingestors-card": "scripts/tarn apply",
            ".strip-card": "No commit in the last minute",
            ".audits-card": "scripts/tarn audit",
            ".fsck-card": "scripts/tarn fsck looks at the whole lake",
        }.items():
            assert words in page.text(part), part
        assert page.run("document.querySelector('#tables').checkVisibility()") is False


def test_what_keeps_ingest_from_working_is_said(page: Page) -> None:
    with shown() as lake:
        lake.commit(1)
        page.open(lake.url)
        page.until("document.querySelector('#state').innerText === 'Healthy'")
        lake.tables.fault = UnavailableError("the catalog at http://catalog:8181 does not answer")
        lake.check(catalog="no answer from http://catalog:8181")
        page.until("document.querySelector('#state').innerText === 'In trouble'")
        notice = page.text("#notice")
        assert "no answer from http://catalog:8181" in notice
        assert "scripts/doctor" in notice
        assert row(page, "services", "catalog")[1] == "fails"
        page.run(f"location.hash = '#/tables/{TABLE}'")
        page.until("document.querySelector('.history-card').innerText.includes('does not answer')")
        assert "1" in page.text(".tiles").split(), "what is in memory is shown"
        lake.tables.fault = None
        lake.check()
        page.run(
            "[...document.querySelectorAll('.detail button')].filter((one) => one.checkVisibility()"
            " && one.innerText === 'Try again').forEach((one) => one.click())"
        )
        page.until("document.querySelector('#snapshots tbody tr')")
        page.until("document.querySelector('#columns tbody tr')")
        page.until("document.querySelector('#state').innerText === 'Healthy'")
        page.console[:] = [line for line in page.console if "503" not in line]


def test_fsck_is_shown_with_its_age_its_findings_and_what_to_run_next(page: Page) -> None:
    held = [FsckSeen()]
    evil = "ops.<img src=x onerror=alert(1)>"
    now_ms = time.time_ns() // 1_000_000
    page.send("Page.addScriptToEvaluateOnNewDocument", source=QUICK)
    with shown(fsck=lambda: held[0]) as lake:
        ready(page, lake.url)

        def says(*words: str) -> None:
            text = "document.querySelector('.fsck-card').innerText"
            page.until(f"{json.dumps(words)}.every((one) => {text}.includes(one))")

        def tone() -> str:
            return str(page.run("document.querySelector('.fsck .dot').className"))

        says("Unknown", "Nothing has been read yet")
        held[0] = seen()
        says("Never run on this lake", "scripts/tarn fsck looks at the whole lake, changes nothing")
        assert page.run("document.querySelector('#fsck').checkVisibility()") is False
        held[0] = seen(a_result(began_ms=now_ms - 3 * 3_600_000))
        says("Clean", "3 h ago: 3 tables, 9 snapshots, 40 files", "4 files of 70 B that nothing names")
        assert tone() == "dot good"
        held[0] = seen(a_result(began_ms=now_ms - 30 * 3_600_000))
        says("Clean, by an old look", "30 h ago", "run scripts/tarn fsck again")
        assert tone() == "dot warn"
        many = [finding(Kind.OFFSETS_HOLE, f"bronze.n{n}") for n in range(FINDINGS_MAX)]
        damage = finding(Kind.FILE, evil, "1 missing: s3://t/data/day=1/x.parquet")
        result = a_result(*many, damage, began_ms=now_ms - 5_000)
        held[0] = seen(result)
        says(
            "Damaged: 1 finding", "; 50 notes; ", "data file missing (damage): 1", "These are the first ones"
        )
        assert tone() == "dot bad"
        found = cells(page, "fsck")
        assert len(found) == FINDINGS_MAX
        assert found[0] == [
            evil,
            "damage",
            "data file missing: 1 missing: s3://t/data/day=\u2026/x.parquet",
            "restore a backup",
        ]
        assert found[1][:2] == ["bronze.n0", "note"]
        page.run("document.querySelector('#fsck').parentElement.focus()")
        assert page.run("document.activeElement.getAttribute('aria-label')") == "Findings, damage first"
        run = a_run(run="two", began_ms=now_ms, said_ms=now_ms, progress="table 3 of 9: a.b")
        held[0] = seen(result, run)
        says("A run is under way", "It said last: table 3 of 9: a.b", "wait for the run to end", "Damaged")
        held[0] = seen(result, run.model_copy(update={"state": RunState.FAILED, "reason": "no answer"}))
        says("has no result, and says nothing about the lake: no answer", "run scripts/tarn fsck again")
        held[0] = seen(None, run.model_copy(update={"state": RunState.INTERRUPTED}))
        says("Never run on this lake", "was interrupted, and says nothing about the lake")
        assert page.run("document.querySelector('#fsck').checkVisibility()") is False
        held[0] = seen(None, None, "fsck/v1/result.json cannot be used: it is no JSON")
        says("Unknown", "cannot be used: it is no JSON")
        assert page.text("#state") == "Healthy", "the lake's figures are shown all the same"


def test_a_server_that_is_gone_and_comes_back(page: Page) -> None:
    # None that a connection gets while the server is gone.
    port = int(free_ports(["page"])["page"])
    with shown(port=port) as lake:
        lake.commit(7)
        ready(page, lake.url)
    page.until("document.querySelector('#state').innerText === 'No answer'")
    page.until("/Last seen [0-9.]+ s ago/.test(document.querySelector('#notice').innerText)")
    notice = page.text("#notice")
    assert f"does not answer at http://127.0.0.1:{port}" in notice
    assert "scripts/up" in notice
    assert row(page, "tables", TABLE)[1] == "7", "what was seen stays"
    assert page.run("document.body.classList.contains('stale')") is True
    page.console.clear()
    with shown(port=port) as lake:
        lake.commit(2)
        page.until("document.querySelector('#state').innerText === 'Healthy'")
        page.until(f"({CELLS})('tables').some((row) => row[1] === '2')")
        assert page.run("document.querySelector('#notice').hidden") is True
        page.console[:] = [line for line in page.console if "ERR_CONNECTION" not in line]


def test_old_figures_are_said_to_be_old(page: Page) -> None:
    with shown() as lake:
        lake.commit(1)
        ready(page, lake.url)
        # The machine slept: the clock went on, and no poll came.
        page.run(
            "(() => { const now = Date.now; Date.now = () => now() + 40000;"
            " window.fetch = () => new Promise(() => {}) })()"
        )
        page.until("document.querySelector('#state').innerText === 'Stale'")
        age = re.search(r"Last seen (\d+) s ago", page.text("#notice"))
        assert age is not None, page.text("#notice")
        assert 40 <= int(age[1]) < 40 + WAIT_S


def test_everything_works_with_the_keyboard_alone(page: Page) -> None:
    with shown() as lake:
        lake.commit(2)
        ready(page, lake.url)
        visited: list[str] = []
        for _ in range(60):
            page.press("Tab")
            name = page.run(
                "(() => { const at = document.activeElement; if (at === document.body) return '';"
                " return at.id || at.getAttribute('aria-label') || at.innerText })()"
            )
            if name == "" and visited:
                break
            visited.append(name)
            if name:
                style = page.run(
                    "(() => { const s = getComputedStyle(document.activeElement);"
                    " return [s.outlineStyle, parseFloat(s.outlineWidth)] })()"
                )
                assert style[0] == "solid", name
                assert style[1] >= 2, name
        assert visited[0] == "Skip to the figures"
        for name in ("Tarn", "pause", "theme", TABLE, "filter", "orders", "/v1"):
            assert name in visited, (name, visited)
        page.run("document.querySelector('#filter').focus()")
        page.type("letters")
        page.until("document.querySelectorAll('#tables tbody tr').length === 1")
        assert cells(page, "tables")[0][0] == LETTERS
        page.run("document.querySelector('#tables tbody a').focus()")
        page.press("Enter")
        page.until("document.querySelector('#subject')")
        assert LETTERS in page.text("#subject")
        page.press("Tab", shift=True)
        assert page.run("document.activeElement.getAttribute('href')") == "#/"
        page.press("Enter")
        page.until("document.querySelector('#tables')")
        page.run("document.querySelector('#theme').focus()")
        page.press("Enter")
        assert page.run("document.documentElement.dataset.theme") == "light"
        page.press(" ")
        assert page.run("document.documentElement.dataset.theme") == "dark"
        page.open(lake.url)
        assert page.run("document.documentElement.dataset.theme") == "dark", "it is kept"
        assert page.text("#theme") == "Theme: dark"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read_in_both_themes(page: Page, theme: str) -> None:
    held = seen(a_result(finding(), finding(Kind.OFFSETS_HOLE)), a_run(run="two"), "it is no JSON")
    with shown(fsck=lambda: held) as lake:
        lake.commit(2, bad=1)
        registry = lake.lake.registry
        registry.update("stopped", state=State.STOPPED, reason="OffsetGap", message="a gap", table="a.b")
        registry.update("waiting", state=State.WAITING, reason="NoTopic", message="no topic", table="a.c")
        registry.update_audit("a.b", at_ms=1, findings=("row lost",), whole_at_ms=1, missing=1)
        page.prefer(prefers_color_scheme=theme)
        page.open(lake.url)
        page.until("document.querySelector('#state').innerText !== 'Loading…'")
        lake.check(kafka="no answer")
        page.until("document.querySelector('#state').innerText === 'In trouble'")
        ground = page.run("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(238, 244, 245)") == (theme == "light")
        for look in ("#/", f"#/tables/{TABLE}", "#/ingestors/stopped"):
            page.run(f"location.hash = {json.dumps(look)}")
            page.until("document.querySelector('main table:not([hidden]), #subject')")
            found = page.run(CONTRAST)
            assert len(found) > 20
            low = [one for one in found if one[0] < CONTRAST_MIN]
            assert low == [], look


def test_landmarks_headings_and_tables_are_marked(page: Page) -> None:
    with shown() as lake:
        lake.commit(1)
        ready(page, lake.url)
        for look in ("#/", f"#/tables/{TABLE}", "#/ingestors/orders"):
            page.run(f"location.hash = {json.dumps(look)}")
            page.until("document.querySelector('main table')")
            wrong = page.run(
                """[
                ...[...document.querySelectorAll('table')].filter((one) => !one.caption?.innerText.trim()
                    || [...one.tHead.rows[0].cells].some((cell) => cell.scope !== 'col')
                    || [...one.tBodies[0].rows].some((row) => row.cells[0].scope !== 'row')),
                ...[...document.querySelectorAll('section')].filter(
                    (one) => !document.getElementById(one.getAttribute('aria-labelledby'))),
                ...[...document.querySelectorAll('button, a, input, select')].filter(
                    (one) => !(one.innerText || one.labels?.[0]?.innerText || one.textContent).trim()),
                ].map((one) => one.outerHTML.slice(0, 200))"""
            )
            assert wrong == []
            ids = page.run("[...document.querySelectorAll('[id]')].map((one) => one.id)")
            assert len(ids) == len(set(ids))
        counts = page.run(
            "['header', 'main', 'footer', 'h1'].map((one) => document.querySelectorAll(one).length)"
        )
        assert counts == [1, 1, 1, 1]
        assert page.run("document.documentElement.lang") == "en"
        assert page.run("document.querySelector('#state').getAttribute('role')") == "status"


@pytest.mark.parametrize("width", [360, 1920])
def test_nothing_is_cut_off_at_any_width(page: Page, width: int) -> None:
    held = seen(a_result(finding(what=f"1 missing: s3://t/{'x' * 300}")), a_run(run="two"), "y" * 300)
    with shown(fsck=lambda: held) as lake:
        lake.commit(2)
        page.size(width, 800)
        ready(page, lake.url)
        for look in ("#/", f"#/tables/{TABLE}", "#/ingestors/orders"):
            page.run(f"location.hash = {json.dumps(look)}")
            page.until("document.querySelector('main tbody tr')")
            assert page.run("document.documentElement.scrollWidth") <= width, look
            out = page.run(
                """[...document.querySelectorAll('main *, header *')].filter((one) => one.checkVisibility()
                && !one.closest('.scroll, svg') && one.getBoundingClientRect().right > innerWidth + 1)
                .map((one) => one.outerHTML.slice(0, 120))"""
            )
            assert out == [], look


def test_nothing_moves_where_the_system_asks_for_that(page: Page) -> None:
    moving = """[...document.querySelectorAll('*')].filter((one) => {
        const s = getComputedStyle(one);
        return s.animationName !== 'none' || s.transitionDuration.split(', ').some((t) => parseFloat(t) > 0);
    }).length"""
    with shown() as lake:
        page.prefer(prefers_reduced_motion="reduce")
        ready(page, lake.url)
        assert page.run(moving) == 0
        page.prefer(prefers_reduced_motion="no-preference")
        assert page.run(moving) > 0, "the look sees what moves"


@contextmanager
def a_stream(answers: dict[str, Any], origin: Callable[[], str]) -> Iterator[str]:
    """The address of a service that answers as stream does, to pages of one origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Access-Control-Allow-Origin", origin())
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def route(flights: int, **more: Any) -> dict[str, Any]:
    return {
        "origin": "JFK",
        "destination": "LAX",
        "originName": "New York",
        "destinationName": None,
        "flights": flights,
        "meanDepartureDelayMinutes": 12.345,
        "meanArrivalDelayMinutes": None,
        "cancelled": 1,
        "windowStart": "2013-01-01T10:00:00Z",
        "windowEnd": "2013-01-01T10:15:00Z",
    } | more


def test_live_windows_and_alerts_of_the_stream(page: Page) -> None:
    at = [""]
    alert = {
        "id": "1",
        "at": "2013-01-01T10:15:00Z",
        "kind": "delay",
        "route": "JFK-LAX",
        "message": "JFK to LAX: mean delay 61 min <b>",
        "value": 61.0,
    }
    answers = {
        "/v1/windows": {
            "windowSeconds": 900,
            "watermark": "2013-01-01T10:15:00Z",
            "lateDropped": 2,
            "routes": [route(3), route(9, origin="BOS", originName="Boston")],
        },
        "/v1/alerts": {
            "alerts": [alert, *(alert | {"id": f"{n}", "message": f"older {n}"} for n in range(2, 6))]
        },
    }
    with a_stream(answers, lambda: at[0]) as stream, shown(stream_url=stream) as lake:
        at[0] = lake.url.rstrip("/")
        ready(page, lake.url)
        page.until("document.querySelector('#windows tbody tr')")
        assert cells(page, "windows") == [
            ["Boston (BOS) → LAX", "9", "12.3 min", UNKNOWN, "1"],
            ["New York (JFK) → LAX", "3", "12.3 min", UNKNOWN, "1"],
        ]
        assert "2 late events dropped" in page.text(".windows-card")
        shown_alerts = page.run("[...document.querySelectorAll('.alerts li')].map((one) => one.innerText)")
        assert [one.partition(":15:00 ")[2] for one in shown_alerts] == [
            alert["message"],
            "older 2",
            "older 3",
        ], "the service says the newest first"


def test_a_stream_that_does_not_answer_is_said_quietly(page: Page) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{one.getsockname()[1]}"
    with shown(stream_url=nobody) as lake:
        ready(page, lake.url)
        page.until("document.querySelector('.windows-card').innerText.includes('gives no answer')")
        assert page.text("#state") == "Healthy"
        assert page.run("document.querySelector('#notice').hidden") is True
        asked = [address for address in page.requests if address.startswith(nobody)]
        assert len(asked) == 2, "once, and then not for half a minute"
        page.console.clear()


def test_something_else_in_the_streams_place_is_said_quietly_too(page: Page) -> None:
    at = [""]
    answers: dict[str, Any] = {"/v1/windows": {"status": "starting"}, "/v1/alerts": {}}
    with a_stream(answers, lambda: at[0]) as stream, shown(stream_url=stream) as lake:
        at[0] = lake.url.rstrip("/")
        ready(page, lake.url)
        page.until("document.querySelector('.windows-card').innerText.includes('no windows, but something')")
        lake.commit(3)
        page.until(f"({CELLS})('tables').some((row) => row[1] === '3')")
        assert page.text("#state") == "Healthy"


def test_a_defect_of_the_page_is_said_and_does_not_stop_it(page: Page) -> None:
    with shown() as lake:
        ready(page, lake.url)
        page.run("(() => { window.kept = document.querySelector('#version'); window.kept.remove(); })()")
        page.until("document.querySelector('#state').innerText === 'Defect'")
        assert "load the page again" in page.text("#notice")
        assert page.console
        page.run("document.querySelector('footer p').prepend(window.kept)")
        page.until("document.querySelector('#state').innerText === 'Healthy'")
        page.console.clear()


def test_the_skip_link_keeps_the_view(page: Page) -> None:
    with shown() as lake:
        lake.commit(1)
        page.open(f"{lake.url}#/tables/{TABLE}")
        page.until("document.querySelector('#columns tbody tr')")
        page.run("document.querySelector('.skip').focus()")
        page.press("Enter")
        page.until("document.activeElement.id === 'main'")
        assert page.run("location.hash") == f"#/tables/{TABLE}"
        assert TABLE in page.text("#subject")


def test_a_table_that_changes_keeps_the_focus_of_its_reader(page: Page) -> None:
    with shown() as lake:
        lake.commit(1)
        page.open(f"{lake.url}#/tables/{TABLE}")
        page.until("document.querySelector('#columns tbody tr')")
        before = page.run("document.querySelector('.objects-card dd:nth-of-type(1)').innerText")
        lists = "document.querySelector('.objects-card').innerText"
        page.run("document.querySelector('#columns').parentElement.focus()")
        found = page.run(lists)
        lake.commit(1)
        page.until(f"{lists} !== {json.dumps(found)}")
        assert page.run("document.activeElement === document.querySelector('#columns').parentElement")
        assert page.run("document.querySelector('.objects-card dd:nth-of-type(1)').innerText") == before


def test_the_lists_of_a_table_are_asked_for_after_its_figures(page: Page) -> None:
    """Otherwise a commit between the two is in the figures, and never in the lists."""
    with shown() as lake:
        lake.commit(1)
        page.open(f"{lake.url}#/tables/{TABLE}")
        page.until("document.querySelector('#columns tbody tr')")
        figures = f"{lake.url}v1/tables/{TABLE}"
        asked = [address.partition("?")[0] for address in page.requests]
        for look in ("snapshots", "files", "metadata"):
            assert asked.index(figures) < asked.index(f"{figures}/{look}")


def test_a_table_with_many_commits_is_looked_into_every_few_seconds_only(page: Page) -> None:
    """The page asks every two seconds, and a look into a table waits for the catalog and the store."""
    with shown() as lake:
        lake.commit(1)
        page.open(f"{lake.url}#/tables/{TABLE}")
        page.until("document.querySelector('#columns tbody tr')")
        begin, figures = len(page.requests), f"{lake.url}v1/tables/{TABLE}"
        looks = [f"{figures}/{look}" for look in ("snapshots", "files", "metadata")]

        def asked() -> list[str]:
            return [address.partition("?")[0] for address in page.requests[begin:]]

        while looks[0] not in asked():
            assert asked().count(figures) < 10, "the history of a table that changes is looked at again"
            lake.commit(1)
            page.run("new Promise((done) => setTimeout(done, 400))")
        page.until("document.querySelector('#columns tbody tr')")
        assert asked().count(figures) >= 2, "its figures are new at each poll"
        assert [asked().count(look) for look in looks] == [1, 1, 1]


def test_several_deletes_in_one_file_are_all_shown(page: Page) -> None:
    """A file of deletion vectors is in the manifest once for each data file that it is about."""
    with shown() as lake:
        lake.commit(1)
        ready(page, lake.url)
        rows = page.run("""(async () => {
            const { table } = await import('/page/dom.js');
            const columns = [{ head: 'File', cell: (one) => one.text }];
            const made = table({ caption: 'c', empty: '-', name: 'n', columns });
            const texts = () => [...made.node.querySelectorAll('tbody tr')].map((row) => row.textContent);
            const path = (text) => (text === 'd' ? 'other' : 'puffin');
            const list = ['a', 'b', 'c', 'd'].map((text) => ({ path: path(text), text }));
            made.show(list, (one) => one.path);
            const first = texts();
            made.show(list.slice(1), (one) => one.path);
            return [first, texts()];
        })()""")
        assert rows == [["a", "b", "c", "d"], ["b", "c", "d"]]


def test_times_are_of_the_readers_zone_which_is_named(page: Page) -> None:
    with shown() as lake:
        lake.commit(1)
        page.send("Emulation.setTimezoneOverride", timezoneId="Asia/Kolkata")
        ready(page, lake.url)
        (seen,) = lake.lake.registry.commits.last(10).commits
        at = datetime.fromtimestamp(seen.at_ms / 1_000, ZoneInfo("Asia/Kolkata"))
        assert cells(page, "commits")[0][0] == f"{at:%H:%M:%S}"
        assert "Times are those of Asia/" in page.text("footer")


def test_a_hidden_tab_asks_for_nothing(page: Page) -> None:
    hide = (
        "(() => {{ Object.defineProperty(document, 'hidden', {{ value: {}, configurable: true }});"
        " document.dispatchEvent(new Event('visibilitychange', {{ bubbles: true }})) }})()"
    )
    with shown() as lake:
        ready(page, lake.url)
        page.run(hide.format("true"))
        page.run("new Promise((done) => setTimeout(done, 500))")
        asked = len(page.requests)
        page.run("new Promise((done) => setTimeout(done, 4500))")
        assert len(page.requests) == asked
        lake.commit(6)
        page.run(hide.format("false"))
        page.until(f"({CELLS})('tables').some((row) => row[1] === '6')")


POLLS = 66
QUICK = (
    "(() => { const later = setTimeout; window.setTimeout = (f, ms) => later(f, ms === 2000 ? 20 : ms) })()"
)


def test_a_tab_that_stays_open_does_not_grow(page: Page) -> None:
    """As many polls as in two minutes, with commits and views that come and go: nodes and handlers stay."""

    def weight() -> dict[str, float]:
        page.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in page.send("Performance.getMetrics")["metrics"]}
        # A commit of the last minute is a mark of three nodes: the mark, its title, and the title's text.
        marks = page.run("document.querySelectorAll('.strip circle').length")
        return {
            "nodes": found["Nodes"] - 3 * marks,
            "listeners": found["JSEventListeners"],
            "bytes": found["JSHeapUsedSize"],
        }

    def polls(lake: Any, count: int) -> None:
        first = len(page.requests)
        for look in (f"#/tables/{TABLE}", "#/ingestors/orders", "#/") * 2:
            page.run(f"location.hash = {json.dumps(look)}")
            wanted, until = first + count * 8 / 6, time.monotonic() + 120
            while len(page.requests) < wanted:
                assert time.monotonic() < until, f"{len(page.requests) - first} requests by {look}"
                lake.commit(1)
                page.run("new Promise((done) => setTimeout(done, 100))")
            first = len(page.requests)
        page.until("document.querySelectorAll('#tables tbody tr').length === 2")

    page.send("Performance.enable")
    page.send("Page.addScriptToEvaluateOnNewDocument", source=QUICK)
    with shown() as lake:
        ready(page, lake.url)
        for _ in range(30):  # so that the lists are as long as they are shown
            lake.commit(1)
        polls(lake, 36)
        before = weight()
        polls(lake, POLLS)
        # What a view that was left had is collected a little later.
        eventually(lambda: grown(before, weight()) == [], timeout_s=10, what=f"no more than {before}")


def grown(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """What has grown by more than chance."""
    most = {
        "listeners": before["listeners"] + 10,
        "nodes": before["nodes"] * 1.1 + 50,
        "bytes": before["bytes"] * 1.25 + 1_000_000,
    }
    return [name for name, limit in most.items() if after[name] > limit]
