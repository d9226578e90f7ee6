"""The fault buttons in a real browser: what was struck, how it was resolved, and an audit at zero."""

from __future__ import annotations

import pytest

from tests.support.chromium import Page
from tests.support.struck import struck

TABS_MAX = 100

pytestmark = pytest.mark.may_skip("no Chromium to be had")


@pytest.mark.parametrize(
    ("button", "struck_words", "resolved_words"),
    [
        ("Drop the next reply", "its answer was dropped", "unknown, then resolved"),
        ("Kill a writer", "was left behind", "the controller started another writer"),
    ],
)
def test_a_button_strikes_and_the_audit_beside_it_is_at_zero(
    page: Page, button: str, struck_words: str, resolved_words: str
) -> None:
    with struck() as made:
        page.open(f"http://127.0.0.1:{made.client.port}/")
        page.until("!document.querySelector('.faults-card').hidden")
        page.until("document.querySelector('#victim').value === 'orders'")
        page.until("!document.querySelector('.strike').disabled")
        # With the keyboard: nobody needs a mouse to break something.
        page.run("document.querySelector('#victim').focus()")
        for _ in range(TABS_MAX):
            if page.run("document.activeElement.innerText") == button:
                break
            page.press("Tab")
            assert page.run("document.activeElement !== document.body")
        else:
            pytest.fail(f"{TABS_MAX} times Tab do not lead to the button {button}")
        page.press("Enter")
        page.until("document.querySelector('.strikes > li')?.dataset.state === 'done'", timeout_s=60)
        shown = page.text(".strikes > li")
        assert button in shown
        assert struck_words in shown
        assert resolved_words in shown
        assert "0 lost, 0 doubled, 0 unknown" in shown
        page.until(
            "document.querySelector('.faults-card [role=status]').innerText.includes('0 lost, 0 doubled')"
        )
        strike = made.over()
        assert strike["audit"]["whole"] is True
        assert strike["commitId"] in shown
        offsets = made.plant.lake.offsets()
        assert len(offsets) == len(set(offsets)) > 0
        page.until("[...document.querySelectorAll('.strike')].every((one) => !one.disabled)")


def test_a_strike_that_is_refused_says_why(page: Page) -> None:
    with struck() as made:
        page.open(f"http://127.0.0.1:{made.client.port}/")
        page.until("document.querySelector('.strike')?.disabled === false")
        made.strikes.token = "another one, as of another process"
        page.click(".strike")
        said = "document.querySelector('.faults-card [role=status]').innerText"
        page.until(f"{said}.includes('not that of this process')")
        assert made.strikes.all() == []
        page.console[:] = [line for line in page.console if "403" not in line]
