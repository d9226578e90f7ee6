"""Rows over HTTP and of a topic in one table: each stream keeps its place while only the other commits."""

from __future__ import annotations

import dataclasses

from tarn.core.offsets import TAG_PREFIX
from tarn.core.producers import STREAM
from tarn.core.write_keys import KeyedWrite
from tarn.gateway.rows_commit import keys_in
from tarn.ingest.batch_commit import offsets_in
from tarn.testing.memory_topic import Topic
from tests.contract.gateway.test_forgotten import require_whole
from tests.contract.gateway.test_inbox import ids, inbox, settle, write
from tests.contract.ingest.test_replaced import update
from tests.contract.ingest.test_silent_streams import DAY_S, HISTORY, from_now_on
from tests.support.lake import Lake, order


def lake_with_table() -> tuple[Lake, Topic]:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    from_now_on(lake)
    send(lake, topic, 1, 2)
    update(lake, {"action": "set-properties", "updates": {"tarn.history": HISTORY}})
    return lake, topic


def send(lake: Lake, topic: Topic, *numbers: int) -> None:
    topic.send(0, *map(order, numbers))
    lake.work(lake.ingestor(), turns=40)


def kept(lake: Lake, stream: str) -> int:
    return int(lake.table().refs[TAG_PREFIX + stream]["snapshot-id"])


def test_a_gateway_goes_on_after_days_in_which_only_the_topic_had_rows() -> None:
    lake, topic = lake_with_table()
    box = inbox(lake)
    keyed = dataclasses.replace(write(11, producer=None), keyed=KeyedWrite(key="k", digest="d"))
    first = [box.submit(one) for one in (write(10, producer="p"), keyed)]
    settle(box)
    assert [answer.result(0).accepted for answer in first] == [1, 1]
    last, entry, before = kept(lake, STREAM), keys_in(lake.table()), offsets_in(lake.table(), STREAM)
    assert entry is not None
    for number in range(5):
        send(lake, topic, 100 + number)
        lake.clock.now_s += DAY_S
    assert not lake.table().has_snapshot(last)
    assert (keys_in(lake.table()), offsets_in(lake.table(), STREAM)) == (entry, before)
    for other in (box, inbox(lake, own="gateway-1")):
        again = other.submit(write(10, producer="p"))
        settle(other)
        assert again.result(0).repeated
    late = dataclasses.replace(write(13, producer=None), keyed=KeyedWrite(key="l", digest="d"))
    after = [box.submit(one) for one in (write(12, producer="p", sequence=1), late)]
    settle(box)
    assert [answer.result(0).repeated for answer in after] == [False, False]
    assert ids(lake) == [1, 2, 10, 11, 12, 13, *range(100, 105)]
    require_whole(lake)


def test_a_topic_goes_on_after_days_in_which_only_a_gateway_had_rows() -> None:
    lake, topic = lake_with_table()
    last = kept(lake, "orders")
    box = inbox(lake)
    for number in range(5):
        lake.clock.now_s += DAY_S
        answer = box.submit(write(10 + number, producer="p", sequence=number))
        settle(box)
        assert answer.result(0).accepted == 1
    assert not lake.table().has_snapshot(last)
    send(lake, topic, 3)
    assert ids(lake) == [1, 2, 3, *range(10, 15)]
    require_whole(lake)
