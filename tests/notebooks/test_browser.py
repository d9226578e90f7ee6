"""A newcomer's way in: the printed address with its token in a real browser, and the whole tour."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import browser, chromium
from tests.support.containers import artifacts
from tests.support.stack import Stack

OPENED_S = 180.0
RAN_S = 300.0
START = "A tour of the lake"
DONE = "facts checked on this lake, all of them hold"
ITEM = "[...document.querySelectorAll({selector!r})].find(one => one.innerText.trim() === {text!r})"
KERNEL_IDLE = (
    "[...document.querySelectorAll('#jp-main-statusbar span')].some(one => /\\| Idle$/.test(one.innerText))"
)
FRONT = "document.querySelector('.lm-DockPanel-tabBar .lm-mod-current .lm-TabBar-tabLabel')"
RUN_ALL = ".lm-Menu-item[data-command='runmenu:run-all']"
OUTPUTS = "[...document.querySelectorAll('.jp-OutputArea-output')].map(one => one.innerText).join('\\n')"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.tab(browser.required(), tmp_path_factory.mktemp("profile")) as found:
        yield found


def click(page: chromium.Page, selector: str, text: str) -> None:
    """Click on the element of a selector that has exactly this text."""
    item = ITEM.format(selector=selector, text=text)
    page.until(f"(() => {{ const one = {item}; if (one) one.dataset.wanted = ''; return Boolean(one); }})()")
    page.click("[data-wanted]")
    page.run("document.querySelectorAll('[data-wanted]').forEach(one => delete one.dataset.wanted)")


def address(stack: Stack) -> str:
    answer = stack.script("tarn", "env", "--json", timeout_s=120)
    assert answer.code == 0, answer.text
    return str(json.loads(answer.text.splitlines()[-1])["TARN_JUPYTER_URL"])


@pytest.mark.may_skip("no Chromium to be had")
def test_a_newcomer_opens_the_printed_address_and_runs_the_tour_to_its_end(
    flights: Stack, page: chromium.Page
) -> None:
    """As `scripts/up` and the README say; the pictures are kept beside the reports."""
    pictures = artifacts() / "pictures"
    pictures.mkdir(exist_ok=True)
    page.open(address(flights))
    page.until(
        f"document.querySelector('.jp-RenderedMarkdown')?.innerText.includes({START!r})", timeout_s=OPENED_S
    )
    page.picture(pictures / "start.png")
    assert page.run("document.querySelectorAll('.jp-RenderedMarkdown table tr').length") == 13, "12 notebooks"
    assert "Jupyter news" not in page.run("document.body.innerText")

    click(page, ".jp-RenderedMarkdown a", START)
    page.until("document.querySelectorAll('.jp-Notebook .jp-CodeCell').length > 3", timeout_s=OPENED_S)
    page.until(KERNEL_IDLE, timeout_s=OPENED_S)
    # The menus follow the tab that is in front.
    click(page, ".lm-DockPanel-tabBar .lm-TabBar-tabLabel", "00_tour.ipynb")
    page.until(f"{FRONT}?.innerText.trim() === '00_tour.ipynb'")
    click(page, ".lm-MenuBar-item", "Run")
    page.until(f"document.querySelector({RUN_ALL!r})")
    page.click(RUN_ALL)
    page.until(f"{OUTPUTS}.includes({DONE!r})", timeout_s=RAN_S)
    page.picture(pictures / "tour.png")
    said = page.run(OUTPUTS)
    assert "Traceback" not in said
    # Outputs that are scrolled away are not in the page; the last line counts all facts.
    held = re.search(rf"(\d+) {DONE}", said)
    assert held is not None
    assert int(held[1]) >= 13, said


@pytest.mark.may_skip("no Chromium to be had")
def test_without_the_token_the_browser_meets_a_login(stack: Stack, tmp_path: Path) -> None:
    with chromium.tab(browser.required(), tmp_path) as page:
        page.open(address(stack).partition("?")[0])
        page.until("location.pathname.startsWith('/login')")
        assert page.run("document.querySelectorAll('.jp-Notebook').length") == 0
