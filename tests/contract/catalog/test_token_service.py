"""The client of the store's token service, against a fake with the rules of MinIO's."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tarn.adapters.sts import ANSWER_BYTES_MAX
from tarn.core.errors import UnavailableError
from tarn.core.temporary_keys import DURATION_S_MIN
from tests.support.sts import FakeSts, check_contract, fake_sts

WHOLE = (
    b"<a><AccessKeyId>a</AccessKeyId><SecretAccessKey>s</SecretAccessKey> "
    b"<SessionToken>t</SessionToken><Expiration>2026-11-23T00:00:00Z</Expiration></a>"
)
READS = '{"Version":"2012-10-17","Statement":[]}'


@pytest.fixture
def sts() -> Iterator[FakeSts]:
    with fake_sts() as fake:
        yield fake


def test_the_fake_keeps_the_contract_that_minio_keeps(sts: FakeSts) -> None:
    """tests/integration/catalog/test_vending.py runs the same on MinIO."""
    assert check_contract(sts) == 18


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((503, b""), "says HTTP 503"),
        ((500, b"<html>"), "says HTTP 500"),
        ((404, b""), "leave TARN_STS_ENDPOINT empty"),
        (
            (501, b"<ErrorResponse><Error><Code>NotImplemented</Code></Error></ErrorResponse>"),
            "NotImplemented",
        ),
        ((200, b"<html></html>"), "is it an S3 store with STS"),
        ((200, b"no xml"), "is it an S3 store with STS"),
        ((200, b"<a><Expiration>soon</Expiration></a>"), "is it an S3 store with STS"),
        ((403, b""), "does not know the store user"),
        ((403, b"<E><Code>RequestTimeTooSkewed</Code></E>"), "set the clocks of both machines"),
        ((200, WHOLE.replace(b" ", b" " * ANSWER_BYTES_MAX)), "is it an S3 store with STS"),
        (None, "does not answer"),
    ],
)
def test_whatever_it_answers_is_an_error_that_says_what_to_do(
    sts: FakeSts, answer: tuple[int, bytes] | None, words: str
) -> None:
    sts.broken = lambda: answer
    with pytest.raises(UnavailableError, match=words) as caught:
        sts.service().assume(READS, duration_s=DURATION_S_MIN)
    assert sts.key[1] not in caught.value.message
    assert type(caught.value) is UnavailableError, "not of this request alone"


def test_an_answer_that_does_not_come_is_given_up(sts: FakeSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarn.adapters.sts.ANSWER_TIMEOUT_S", 0.1)
    done = threading.Event()
    sts.broken = lambda: (503, b"") if done.wait(5) else (404, b"")
    try:
        with pytest.raises(UnavailableError, match=r"does not answer \(TimeoutError\)"):
            sts.service().assume(READS, duration_s=DURATION_S_MIN)
    finally:
        done.set()


def test_nobody_there(sts: FakeSts) -> None:
    sts.endpoint = "http://127.0.0.1:1"
    with pytest.raises(UnavailableError, match=r"at http://127\.0\.0\.1:1 does not answer"):
        sts.service().assume(READS, duration_s=DURATION_S_MIN)


def test_no_secret_shows_in_a_repr(sts: FakeSts) -> None:
    keys = sts.service().assume(READS, duration_s=DURATION_S_MIN)
    text = repr(keys) + repr(sts.service())
    assert keys.access_key_id in text
    assert not any(one in text for one in (keys.secret_access_key, keys.session_token, sts.key[1]))
