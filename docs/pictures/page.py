"""Pictures of the page, taken of a running lake with Debian's Chromium.

    .venv/bin/python docs/pictures/page.py [ADDRESS]

ADDRESS is that of the page, http://127.0.0.1:8091 by default. It writes page-light.png, page-dark.png,
page-table.png, page-narrow.png and, where faults by hand are allowed, page-faults.png beside this file. For
the README: `scripts/up` with `TARN_FAULTS=on` in `.env`, and a minute later the strip of commits is full.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "scripts" / "lib")]

from tests.support import browser, chromium  # noqa: E402
from tests.support.chromium import Page  # noqa: E402

WIDTH, HEIGHT = 1200, 820
NARROW = (360, 720)
TABLE = "bronze.flight_events"
INGESTOR = "flights"
STRIKE_S = 240.0
READY = "document.querySelector('#state').innerText === 'Healthy' && document.querySelector('.strip circle')"
OVER = "['done', 'failed'].includes(document.querySelector('.strikes > li')?.dataset.state)"


def main(arguments: list[str]) -> int:
    """Take the pictures; returns 0."""
    address = (arguments or ["http://127.0.0.1:8091"])[0].rstrip("/") + "/"
    program = browser.program()
    if program is None:
        print("no browser: apt-get install chromium", file=sys.stderr)  # noqa: T201
        return 2
    with (
        tempfile.TemporaryDirectory() as profile,
        chromium.started(program, Path(profile)) as running,
        running.page() as page,
    ):
        page.size(WIDTH, HEIGHT)
        page.open(address)
        page.until(READY, timeout_s=60)
        page.until("document.querySelector('#ingestors').innerText.match(/[1-9]/)")
        # Rates are known from the second poll on.
        page.until("!document.querySelectorAll('.tile dd')[1].innerText.includes('\\u2013')")
        for theme in ("light", "dark"):
            page.prefer(prefers_color_scheme=theme)
            save(page, f"page-{theme}", HEIGHT)
        if page.run("!document.querySelector('.faults-card').hidden"):
            page.run(f"document.querySelector('#victim').value = '{INGESTOR}'")
            for button in (1, 2):
                page.run(f"document.querySelectorAll('.strike')[{button - 1}].click()")
                page.until(f"document.querySelectorAll('.strikes > li').length >= {button}")
                page.until(OVER, timeout_s=STRIKE_S)
            page.run("document.querySelector('.faults-card').scrollIntoView()")
            save(page, "page-faults", 520)
        page.prefer(prefers_color_scheme="light")
        page.run(f"location.hash = '#/tables/{TABLE}'")
        page.until("document.querySelector('#columns') && document.querySelector('#files tbody tr')")
        save(page, "page-table", HEIGHT)
        page.size(*NARROW)
        page.run("location.hash = '#/'")
        page.until(READY)
        save(page, "page-narrow", NARROW[1])
    return 0


def save(page: Page, name: str, height: int) -> None:
    """Save what is in the window."""
    path = HERE / f"{name}.png"
    page.picture(path, height=height)
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
