"""A browser for all tests of the page, and lakes in memory behind real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import browser, chromium
from tests.support.chromium import Browser, Page


@pytest.fixture(scope="session")
def chromium_program() -> str:
    return browser.required()


@pytest.fixture(scope="session")
def running(chromium_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    profile: Path = tmp_path_factory.mktemp("profile")
    with chromium.started(chromium_program, profile) as found:
        yield found


@pytest.fixture
def page(running: Browser) -> Iterator[Page]:
    """A tab; a test that expects errors in its console clears them."""
    with running.page() as found:
        yield found
        assert found.console == []
