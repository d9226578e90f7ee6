"""Rules for every test: the folder determines the tier; a skip or an unexpected ERROR line is a failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from tarn_host.testing.tiers import OTHER_TURNS, UNENDED, UNEXPECTED

from tests.support.containers import (
    KEEPER,
    LogKeeper,
    artifacts,
    keep_logs_of_testcontainers,
    remove_leftovers,
)
from tests.support.kafka_sockets import close_abandoned_sockets
from tests.support.log_state import as_it_was, never_cached
from tests.support.plays import NIGHTLY, TIMES
from tests.support.quick_http import make_quick
from tests.support.stack import Stack, running_stack
from tests.support.stuck import Ender, Unended
from tests.support.tiers import CONTAINER_TIERS, TIMEOUT_S_BY_TIER, last_in_their_folders, tier_of
from tests.support.turns import of_other_turns

# The reaper image of testcontainers comes from a registry; leftovers are removed by label instead.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")


# The machine may be busy: the duration of an example, or of drawing one, says nothing about the code.
settings.register_profile("tarn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tarn")
make_quick()
never_cached()


@pytest.fixture(autouse=True)
def logging_of_its_own() -> Iterator[None]:
    """Undo what a test changed in how this process logs."""
    with as_it_was():
        yield


def pytest_configure(config: pytest.Config) -> None:
    """A test that hangs fails by name; those that a stop of the run cut off are named too."""
    config.pluginmanager.register(Ender())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Unended(artifacts() / UNENDED))


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Give each test the marker and the timeout of its tier; leave out what this run does not have.

    Those of other turns last: what the run's own expression of markers leaves out is none of them.
    """
    if not NIGHTLY:
        left = [item for item in items if item.get_closest_marker("nightly") is not None]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    for item in items:
        tier = tier_of(item.path)
        if tier is None:
            raise pytest.UsageError(
                f"{item.path} is in no tier: move it to tests/<tier>/ ({', '.join(TIMEOUT_S_BY_TIER)})"
            )
        item.add_marker(getattr(pytest.mark, tier))
        if item.get_closest_marker("timeout") is None:
            times = TIMES if item.get_closest_marker("plays") else 1
            item.add_marker(pytest.mark.timeout(TIMEOUT_S_BY_TIER[tier] * times))
    yield
    others = of_other_turns(items)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
        (artifacts() / OTHER_TURNS).write_text(
            "".join(f"{item.nodeid}\n" for item in others), encoding="utf-8"
        )
    items[:] = last_in_their_folders(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure, unless the test is marked may_skip or is an expected failure."""
    report = yield
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("may_skip") is not None
    if report.skipped and not expected:
        where = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = (
            f"{where}: a test that does not run proves nothing; mark it may_skip(reason) or make it run"
        )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn a module that skips itself into an error."""
    report = yield
    if report.outcome == "skipped":
        report.outcome = "failed"
        detail = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.longrepr = f"{detail}: a module that skips itself proves nothing"
    return report


def pytest_sessionstart(session: pytest.Session) -> None:
    """Create the keeper of container logs."""
    session.config.stash[KEEPER] = LogKeeper(artifacts() / "logs")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start keeping container logs if tests with containers were collected."""
    with_containers = bool({tier_of(item.path) for item in session.items} & set(CONTAINER_TIERS))
    if with_containers or "kafka" in sys.modules:
        close_abandoned_sockets()
    if with_containers:
        keep_logs_of_testcontainers(session.config.stash[KEEPER])
        session.config.add_cleanup(remove_leftovers)


@pytest.fixture(scope="session")
def log_keeper(pytestconfig: pytest.Config) -> LogKeeper:
    """The session's log keeper, for containers not started by testcontainers."""
    return pytestconfig.stash[KEEPER]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run on an unexpected ERROR line."""
    findings = session.config.stash[KEEPER].findings
    if findings:
        text = "".join(f"{finding.service}: {finding.line[:400]}\n" for finding in findings)
        (artifacts() / UNEXPECTED).write_text(text, encoding="utf-8")
    if findings and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the ERROR lines that failed the run."""
    keeper = config.stash[KEEPER]
    if not keeper.findings:
        return
    terminalreporter.section("unexpected ERROR lines of containers", red=True)
    for finding in keeper.findings[:40]:
        terminalreporter.line(f"{finding.service}: {finding.line[:400]}")
    terminalreporter.line(
        f"{len(keeper.findings)} lines; whole logs: {keeper.folder}; expected ones: tests/log_allow.toml"
    )


@pytest.fixture(scope="session")
def stack(log_keeper: LogKeeper) -> Iterator[Stack]:
    """The whole stack, started by scripts/up under its own name and ports."""
    with running_stack(log_keeper) as found:
        yield found
