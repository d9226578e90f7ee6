"""`tarn.client.writer` over sockets: each row once through lost answers, a busy gateway and ended tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest

from tarn.adapters.gateway_client import BODY_BYTES_MAX, GatewayClient
from tarn.client import AnswerGoneError, NotTakenError, RejectedRowsError, RepeatTooLateError, writer
from tarn.client.repeats import REPEAT_S_MAX, Row
from tarn.client.writing import RowWriter, WriteLimits
from tarn.core.errors import (
    ForbiddenError,
    InvalidError,
    InvalidSettingError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn.core.rejected_rows import RUNS_MAX
from tests.support.gateway import TABLE, Gateway, World, row
from tests.support.planned_client import AWAY, LOST, Planned
from tests.support.stack import eventually

TRIES_MAX = 100


def made(world: World, gateway: Gateway, who: str = "admin", table: str = TABLE) -> RowWriter:
    own = {"gateway": gateway.url, "catalog": world.catalog_url, "credential": world.credentials[who]}
    return writer(table, **own, rows_max=3)


def planned(
    world: World, *plan: TarnError | None, timeout_s: float = 60, wall: Callable[[], float] = lambda: 0.0
) -> tuple[RowWriter, Planned, list[float]]:
    """A writer whose requests fail as planned, its client, and how long it waited."""
    inner = made(world, world.gateway()).client
    client, waits, now = Planned(inner, *plan), [], itertools.count()
    rows = RowWriter(
        table=TABLE,
        client=client,
        limits=WriteLimits(rows_max=3, timeout_s=timeout_s),
        clock=lambda: float(next(now)),
        wall=wall,
        sleep=waits.append,
        chance=lambda: 0.5,
    )
    return rows, client, waits


def test_batches_are_sent_when_they_are_full_and_at_the_end(world: World) -> None:
    with made(world, world.gateway()) as rows:
        for number in range(2):
            rows.write(row(number))
        assert world.ids() == []
        rows.write(row(2))
        assert world.ids() == [0, 1, 2]
        rows.write(row(3))
    assert world.ids() == [0, 1, 2, 3]


def test_a_block_that_fails_sends_nothing_more(world: World) -> None:
    def fail() -> None:
        with made(world, world.gateway()) as rows:
            rows.write(row(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert world.ids() == []


@pytest.mark.parametrize("plan", [[LOST], [LOST, LOST, AWAY, LOST], [AWAY, AWAY]])
def test_a_request_is_repeated_under_one_key_until_its_rows_are_in_once(
    world: World, plan: list[TarnError]
) -> None:
    rows, client, waits = planned(world, *plan)
    receipt = rows.send([row(1), row(2)])
    assert (receipt.accepted, receipt.repeated) == (2, LOST in plan)
    assert len(client.keys) == len(plan) + 1
    assert len(set(client.keys)) == 1
    assert len(waits) == len(plan)
    assert all(wait == 7.0 for wait, error in zip(waits, plan, strict=True) if error is AWAY)
    assert world.ids() == [1, 2]


def test_what_is_given_up_is_kept_and_goes_first_as_it_was(world: World) -> None:
    rows, client, _ = planned(world, LOST, AWAY, AWAY, timeout_s=9)
    rows.write(row(1))
    with pytest.raises(OutcomeUnknownError, match="may have written"):
        rows.flush()
    rows.write(row(2))
    receipt = rows.flush()
    assert receipt is not None
    assert receipt.accepted == 1
    assert client.bodies[0] == client.bodies[-2] != client.bodies[-1]
    assert client.keys[0] == client.keys[-2] != client.keys[-1]
    assert world.ids() == [1, 2]


def test_nothing_unknown_is_unavailable(world: World) -> None:
    rows, _, _ = planned(world, *[AWAY] * 9, timeout_s=9)
    with pytest.raises(UnavailableError):
        rows.send([row(1)])
    assert world.ids() == []


def test_rows_that_the_table_does_not_take_are_named(world: World) -> None:
    rows = made(world, world.gateway())
    bad = {"id": "x", "at": "2026-11-23T08:00:00Z"}
    rows.write(row(1))
    rows.write(bad)
    with pytest.raises(RejectedRowsError, match="1 of 2 rows") as caught:
        rows.flush()
    assert [found for found, _ in caught.value.rows] == [bad]
    assert "whole number" in caught.value.rows[0][1]
    assert caught.value.receipt.accepted == 1
    assert rows.flush() is None
    assert rows.send([bad]).rejected.keys() == {0}
    assert world.ids() == [1]


def test_a_row_is_taken_whose_write_brings_what_was_rejected_of_the_batch_before(world: World) -> None:
    """As a row is that fills a batch; a caller who has seen the rejected rows goes on behind this one."""
    rows, client, _ = planned(world, LOST, AWAY, AWAY, timeout_s=9)
    bad = {"id": "x", "at": "2026-11-23T08:00:00Z"}
    rows.write(row(1))
    rows.write(bad)
    with pytest.raises(OutcomeUnknownError):
        rows.flush()
    with pytest.raises(InvalidError, match="no form in JSON"):
        rows.write({"id": object()})
    with pytest.raises(RejectedRowsError) as caught:
        rows.write(row(2))
    assert [found for found, _ in caught.value.rows] == [bad]
    receipt = rows.flush()
    assert receipt is not None
    assert (receipt.accepted, receipt.repeated) == (1, False)
    assert client.keys[0] == client.keys[-2] != client.keys[-1]
    assert world.ids() == [1, 2]


@pytest.mark.parametrize("seed", range(4))
def test_a_caller_who_goes_by_the_errors_loses_and_doubles_no_row(world: World, seed: int) -> None:
    plan = random.Random(seed).choices([LOST, AWAY, None], k=60)
    rows, _, _ = planned(world, *plan, timeout_s=3)
    refused: list[tuple[Row, Row]] = []
    failed = 0
    for number in range(20):
        for _ in range(TRIES_MAX):
            try:
                rows.write(row(number))
            except NotTakenError as e:
                refused.append((e.row, row(number)))
                continue
            except (UnavailableError, OutcomeUnknownError):
                failed += 1
            break
        else:
            pytest.fail(f"row {number} was not taken {TRIES_MAX} times in a row")
    eventually(lambda: flushed(rows), timeout_s=60, what="the last batch is in", pause_s=0)
    assert failed > 0
    assert len(refused) > 0
    assert all(named == given for named, given in refused)
    assert world.ids() == list(range(20))


def flushed(rows: RowWriter) -> bool:
    try:
        rows.flush()
    except (UnavailableError, OutcomeUnknownError):
        return False
    return True


def test_a_row_is_taken_whose_write_hears_that_the_batch_before_is_gone(world: World) -> None:
    rows, client, _ = planned(world, *[AWAY] * 9, timeout_s=3)
    rows.write(row(1))
    with pytest.raises(UnavailableError):
        rows.flush()
    client.plan[:] = [NotFoundError("the table was dropped")]
    with pytest.raises(NotFoundError):
        rows.write(row(2))
    receipt = rows.flush()
    assert receipt is not None
    assert [len(body.splitlines()) for body in client.bodies[-2:]] == [1, 1]
    assert world.ids() == [1, 2], "each once; the planned client sends before it fails so"


def test_a_key_of_ones_own_holds_for_another_process(world: World) -> None:
    first, second = made(world, world.gateway()), made(world, world.gateway())
    assert not first.send([row(1)], key="order-1").repeated
    assert second.send([row(1)], key="order-1").repeated
    with pytest.raises(InvalidError, match="other"):
        second.send([row(2)], key="order-1")
    for key in ("", "a\nb", "ä", "x" * 201):
        with pytest.raises(InvalidError, match="Invalid key"):
            first.send([row(3)], key=key)
    assert world.ids() == [1]


def test_arrow_data_is_taken_as_it_is(world: World) -> None:
    rows = made(world, world.gateway())
    data = pa.table(
        {"id": pa.array([1, 2], pa.int64()), "at": pa.array([1, 2], pa.timestamp("us", tz="UTC"))}
    )
    assert rows.send(data).accepted == 2
    assert rows.send(data.to_batches()[0]).accepted == 2
    assert world.ids() == [1, 1, 2, 2]


def test_an_ended_token_is_replaced(world: World) -> None:
    asked: list[bool] = []

    def token(*, fresh: bool = False) -> str:
        asked.append(fresh)
        return world.tokens["admin"] if fresh else "ended"

    client = GatewayClient(world.gateway().url, token=token)
    assert (
        client.post(TABLE, b'{"id":1,"at":"2026-11-23T08:00:00Z"}', kind="application/json", key="k").accepted
        == 1
    )
    assert asked == [False, True]


@pytest.mark.parametrize(
    ("who", "table", "error"),
    [
        ("reader", TABLE, ForbiddenError),
        ("stranger", TABLE, UnauthenticatedError),
        ("admin", "bronze.none", NotFoundError),
    ],
)
def test_what_does_not_help_is_not_repeated(
    world: World, who: str, table: str, error: type[TarnError]
) -> None:
    world.principal("reader", "READ")
    world.credentials["stranger"] = "stranger:wrong"
    with pytest.raises(error):
        made(world, world.gateway(), who, table).send([row(1)])


@pytest.mark.parametrize(
    ("who", "table", "error"),
    [
        ("reader", TABLE, ForbiddenError),
        ("stranger", TABLE, UnauthenticatedError),
        ("admin", "bronze.none", NotFoundError),
    ],
)
def test_an_error_that_drops_a_batch_has_its_rows(
    world: World, who: str, table: str, error: type[TarnError]
) -> None:
    world.principal("reader", "READ")
    world.credentials["stranger"] = "stranger:wrong"
    rows = made(world, world.gateway(), who, table)
    rows.write(row(1))
    rows.write(row(2))
    with pytest.raises(error) as caught:
        rows.write(row(3))
    assert list(caught.value.rows) == [row(1), row(2), row(3)]
    assert rows.flush() is None


def test_a_credential_that_is_refused_is_named_as_the_caller_gives_it(world: World) -> None:
    world.credentials["stranger"] = "stranger:wrong"
    with pytest.raises(UnauthenticatedError, match=r"; check TARN_CATALOG_CREDENTIAL, or credential=$"):
        made(world, world.gateway(), "stranger").send([row(1)])


def test_a_gateway_that_is_not_there_took_nothing(world: World) -> None:
    gateway = world.gateway()
    client = made(world, gateway).client
    gateway.stop()
    with pytest.raises((UnavailableError, OutcomeUnknownError)):
        client.post(TABLE, b"{}", kind="application/json", key="k")


def test_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TARN_GATEWAY_URI", "TARN_CATALOG_URI", "TARN_CATALOG_CREDENTIAL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidSettingError, match="TARN_GATEWAY_URI, TARN_CATALOG_URI"):
        writer("a.b")
    with pytest.raises(InvalidError, match="Invalid table 'b'"):
        writer("b")
    for wrong in ({"rows_max": 0}, {"rows_max": 10_001}, {"bytes_max": 0}, {"timeout_s": 601}):
        with pytest.raises(InvalidError, match=f"Invalid {next(iter(wrong))}"):
            writer("a.b", **wrong)


def test_values_without_a_form_in_json(world: World) -> None:
    rows = made(world, world.gateway())
    with pytest.raises(InvalidError, match="not JSON serializable: complex"):
        rows.write({"id": 1j})
    with pytest.raises(InvalidError, match="put the one row into a list"):
        rows.send(row(1))  # type: ignore[arg-type]
    rows.write({"id": Decimal("1"), "at": "2026-11-23T08:00:00Z"})
    with pytest.raises(RejectedRowsError, match="id: expected a whole number"):
        rows.flush()


def test_a_row_that_fits_into_no_request_takes_none_along(world: World) -> None:
    rows = made(world, world.gateway())
    rows.limits = WriteLimits(rows_max=1_000)
    for number in range(10):
        rows.write(row(number))
    with pytest.raises(InvalidError, match="does not fit into a request"):
        rows.write({**row(99), "note": "x" * BODY_BYTES_MAX})
    assert world.ids() == []
    with pytest.raises(RejectedRowsError) as caught:
        rows.write({**row(99), "note": "x" * (BODY_BYTES_MAX - 100)})
    assert [one["id"] for one, _ in caught.value.rows] == [99]
    assert world.ids() == list(range(10))


def test_a_row_is_the_callers_while_it_does_not_fit_beside_a_batch_that_fails(world: World) -> None:
    rows, client, _ = planned(world, *[AWAY] * 9, timeout_s=3)
    large = {**row(2), "note": "x" * (BODY_BYTES_MAX - 60)}
    rows.write(row(1))
    with pytest.raises(NotTakenError) as caught:
        rows.write(large)
    assert caught.value.row is large
    client.plan[:] = [ForbiddenError("no")]
    with pytest.raises(ForbiddenError) as dropped:
        rows.write(large)
    assert list(dropped.value.rows) == [row(1)]
    with pytest.raises(RejectedRowsError) as rejected:
        rows.close()
    assert [one["id"] for one, _ in rejected.value.rows] == [2], "it was taken"


def test_the_end_of_a_block_says_which_rows_are_left(world: World) -> None:
    rows, _, _ = planned(world, *[AWAY] * 9, timeout_s=3)

    def write() -> None:
        with rows:
            rows.write(row(1))
            rows.write(row(2))

    with pytest.raises(UnavailableError) as caught:
        write()
    assert list(caught.value.rows) == [row(1), row(2)]


def test_errors_name_the_rows_that_were_sent_if_one_dict_is_used_for_all(world: World) -> None:
    rows, _, _ = planned(world)
    one: dict[str, object] = row(0)

    def write() -> None:
        for number in ("bad", 1, "worse"):
            one["id"] = number
            rows.write(one)

    with pytest.raises(RejectedRowsError) as caught:
        write()
    assert [found["id"] for found, _ in caught.value.rows] == ["bad", "worse"]
    assert world.ids() == [1]


def test_a_batch_whose_answer_is_not_known_any_more_is_not_called_written_or_rejected(world: World) -> None:
    rows, _, _ = planned(world, LOST)
    rows.limits = WriteLimits(rows_max=1_000)
    for number in range(RUNS_MAX + 1):
        rows.write(row(number))
        rows.write({})
    with pytest.raises(AnswerGoneError, match="sent again they may be there twice") as raised:
        rows.flush()
    assert len(raised.value.rows) == 2 * (RUNS_MAX + 1)
    assert raised.value.receipt.accepted is None
    assert rows.flush() is None, "the batch is gone"
    assert world.ids() == list(range(RUNS_MAX + 1))


def test_a_batch_whose_answer_was_lost_names_the_rows_that_were_rejected(world: World) -> None:
    rows, _, _ = planned(world, LOST)
    for one in (row(1), {}):
        rows.write(one)
    with pytest.raises(RejectedRowsError) as raised:
        rows.flush()
    assert [one for one, _ in raised.value.rows] == [{}]
    assert (raised.value.receipt.accepted, raised.value.receipt.repeated) == (1, True)
    assert world.ids() == [1]


def test_a_batch_whose_key_may_be_forgotten_is_not_sent_a_second_time(world: World) -> None:
    """As of a machine that slept: its monotonic clock stood still."""
    now_s = [0.0]
    rows, client, _ = planned(world, LOST, timeout_s=0, wall=lambda: now_s[0])
    rows.write(row(1))
    with pytest.raises(OutcomeUnknownError, match="lost"):
        rows.flush()
    now_s[0] = REPEAT_S_MAX + 1
    for again in (rows.flush, lambda: rows.write(row(2)), rows.close):
        with pytest.raises(RepeatTooLateError, match=r"661 s ago .* discard\(\)") as caught:
            again()
        assert (caught.value.rows, caught.value.key) == ((row(1),), client.keys[0])
    assert len(client.keys) == 1
    rows.discard()
    rows.write(row(2))
    assert rows.flush() is not None
    assert world.ids() == [1, 2]
