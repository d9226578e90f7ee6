"""The gate before the token service: how many ask, who waits, and what a failure means for the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tarn.core.errors import InvalidError, TarnError, UnavailableError
from tarn.core.temporary_keys import KeysRefusedError, TemporaryKeys
from tarn_catalog.operations import token_gate
from tarn_catalog.operations.token_gate import ASKING_MAX, FAILURE_KEPT_S, WAIT_S_MAX, WAITING_MAX, TokenGate
from tarn_catalog.rest.app import THREADS_MAX

KEYS = TemporaryKeys(access_key_id="a", secret_access_key="b", session_token="c", expires_ms=1)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 50
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Tokens:
    """A token service that answers when it is let."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()
        self.error: TarnError | None = None
        self.now_s = 0.0
        self.gate = TokenGate(self, clock=lambda: self.now_s)

    def assume(self, policy: str, *, duration_s: int) -> TemporaryKeys:
        self.asked += 1
        error = self.error
        assert self.answers.wait(50)
        if error is not None:
            raise error
        return KEYS

    def ask(self) -> TemporaryKeys:
        return self.gate.assume("{}", duration_s=900)

    def refused(self, words: str) -> None:
        """The gate refuses a request at once, and does not ask for it."""
        before = self.asked
        with pytest.raises(UnavailableError, match=words):
            self.ask()
        assert self.asked == before


@pytest.fixture
def tokens() -> Iterator[Tokens]:
    made = Tokens()
    yield made
    made.answers.set()


@pytest.fixture
def threads(tokens: Tokens) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(ASKING_MAX + WAITING_MAX + 2) as made:
        yield made
        tokens.answers.set()


def test_a_quarter_of_the_threads_is_left_to_others() -> None:
    assert ASKING_MAX + WAITING_MAX <= THREADS_MAX * 3 // 4


def test_few_ask_at_one_time_and_the_others_when_their_turn_comes(
    tokens: Tokens, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_gate, "WAIT_S_MAX", 50.0)
    tokens.answers.clear()
    asking = [threads.submit(tokens.ask) for _ in range(ASKING_MAX + WAITING_MAX)]
    until(lambda: tokens.gate._waiting == WAITING_MAX)
    assert tokens.asked == ASKING_MAX
    tokens.refused(f"{WAITING_MAX} requests wait for the token service")
    with pytest.raises(UnavailableError, match="requests wait"):
        tokens.gate.wait(Future())
    tokens.answers.set()
    assert [one.result(50) for one in asking] == [KEYS] * (ASKING_MAX + WAITING_MAX)
    assert (tokens.gate._asking, tokens.gate._waiting) == ([], 0)
    assert tokens.ask() == KEYS


def test_nobody_waits_longer_than_a_moment(
    tokens: Tokens, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_gate, "WAIT_S_MAX", 0.05)
    tokens.answers.clear()
    asking = [threads.submit(tokens.ask) for _ in range(ASKING_MAX)]
    until(lambda: tokens.asked == ASKING_MAX)
    tokens.refused("has not answered other requests")
    with pytest.raises(UnavailableError, match="has not answered other requests"):
        tokens.gate.wait(Future())
    assert tokens.gate._waiting == 0
    tokens.answers.set()
    assert [one.result(50) for one in asking] == [KEYS] * ASKING_MAX


def test_behind_a_silent_service_nobody_begins_to_wait(tokens: Tokens, threads: ThreadPoolExecutor) -> None:
    tokens.answers.clear()
    first = threads.submit(tokens.ask)
    until(lambda: tokens.asked == 1)
    tokens.now_s = WAIT_S_MAX - 0.1
    second = threads.submit(tokens.ask)
    until(lambda: tokens.asked == 2)
    tokens.now_s = WAIT_S_MAX
    tokens.refused("has not answered other requests for 2 s")
    with pytest.raises(UnavailableError, match="for 2 s"):
        tokens.gate.wait(Future())
    tokens.answers.set()
    assert (first.result(50), second.result(50), tokens.ask()) == (KEYS, KEYS, KEYS)


def test_a_failure_is_the_answer_for_all_and_then_one_looks_again(
    tokens: Tokens, threads: ThreadPoolExecutor
) -> None:
    tokens.error = UnavailableError("gone", endpoint="e")
    with pytest.raises(UnavailableError, match="gone"):
        tokens.ask()
    tokens.now_s = FAILURE_KEPT_S - 0.1
    tokens.refused("gone")
    with pytest.raises(UnavailableError, match="gone") as caught:
        tokens.gate.wait(Future())
    assert caught.value.fields == {"endpoint": "e"}

    tokens.now_s = FAILURE_KEPT_S
    tokens.answers.clear()
    one = threads.submit(tokens.ask)
    until(lambda: tokens.asked == 2)
    tokens.refused("gone")
    tokens.answers.set()
    with pytest.raises(UnavailableError, match="gone"):
        one.result(50)
    tokens.refused("gone")

    tokens.error, tokens.now_s = None, 2 * FAILURE_KEPT_S
    assert (tokens.ask(), tokens.ask()) == (KEYS, KEYS), "it is forgotten with the first answer"


def test_who_waited_for_a_turn_does_not_ask_a_service_that_failed(
    tokens: Tokens, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_gate, "WAIT_S_MAX", 50.0)
    tokens.error = UnavailableError("gone")
    tokens.answers.clear()
    asking = [threads.submit(tokens.ask) for _ in range(ASKING_MAX + 3)]
    until(lambda: tokens.gate._waiting == 3)
    tokens.answers.set()
    for one in asking:
        with pytest.raises(UnavailableError, match="gone"):
            one.result(50)
    assert tokens.asked == ASKING_MAX


@pytest.mark.parametrize("error", [KeysRefusedError("no"), InvalidError("no"), RuntimeError("no")])
def test_what_is_wrong_with_one_request_is_kept_from_no_other(tokens: Tokens, error: TarnError) -> None:
    tokens.error = error
    with pytest.raises(type(error), match="no"):
        tokens.ask()
    tokens.error = None
    assert tokens.ask() == KEYS


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (UnavailableError("no", a=1), UnavailableError),
        (KeysRefusedError("no", a=1), KeysRefusedError),
        (KeyboardInterrupt(), UnavailableError),
    ],
)
def test_who_waits_gets_the_answer_or_an_error_of_its_own(
    tokens: Tokens, failure: BaseException, kind: type[TarnError]
) -> None:
    asked: Future[TemporaryKeys] = Future()
    asked.set_exception(failure)
    with pytest.raises(kind) as caught:
        tokens.gate.wait(asked)
    assert caught.value is not failure
    done: Future[TemporaryKeys] = Future()
    done.set_result(KEYS)
    assert tokens.gate.wait(done) is KEYS
