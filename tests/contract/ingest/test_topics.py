"""One spec, several topics: each is a stream of its own in the one table; a pattern follows new topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tarn.core.errors import InvalidSpecError, UnavailableError
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.ingest import topic_watch
from tarn.ingest.batch_commit import _way_out, offsets_in, streams_named
from tarn.ingest.health import faults
from tarn.ingest.service import Loaded, Service, load_specs
from tarn.ingest.status import State, StatusRegistry
from tarn.testing.memory_topic import MemoryTopicClient, Topic
from tests.support.lake import SPEC, Lake, order

WITHIN_S = 60.0
TEXT = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")


def text(source: str) -> str:
    return TEXT.replace("{topic: orders, create: true, partitions: 2}", source)


def spec(source: str) -> IngestorSpec:
    return parse_spec(text(source), file="orders.yaml")


class Run:
    """A service over one spec, with a condition that ends it."""

    def __init__(self, lake: Lake, tmp_path: Any, **files: str) -> None:
        self.lake = lake
        self.registry = StatusRegistry()
        for name, content in files.items():
            (tmp_path / f"{name}.yaml").write_text(content)
        self.loaded: Loaded = load_specs(tmp_path)

    def until(self, done: Callable[[StatusRegistry], bool]) -> None:
        """Run until the condition holds, which is asked before each poll."""
        late_s = time.monotonic() + WITHIN_S

        def halt() -> None:
            self.lake.stop = self.lake.stop or done(self.registry) or time.monotonic() > late_s

        self.lake.sources.on_poll = halt
        service = Service(
            self.loaded,
            self.lake.context(registry=self.registry),
            self.registry,
            threading.Event(),
            specs=self.lake.specs(),
        )
        service.start()
        while not self.lake.stop and time.monotonic() < late_s:
            time.sleep(0.01)
        self.lake.stop = True
        assert service.drain()
        assert time.monotonic() <= late_s, f"not within {WITHIN_S} s: {taken(self.registry)}"


def slowly(client: MemoryTopicClient) -> list[str]:
    """The names of the topics; the pause of the service is no time here."""
    time.sleep(0.01)
    return sorted(client.topics)


@pytest.fixture
def topics() -> dict[str, Topic]:
    found = {
        name: Topic(name, 2, topic_id=f"id-{name}") for name in ("shop.eu", "shop.us", "shopping", "else")
    }
    for start, topic in enumerate(found.values()):
        topic.send(0, *(order(100 * start + n) for n in range(20)), b"junk")
        topic.send(1, *(order(100 * start + 50 + n) for n in range(20)))
    return found


def taken(registry: StatusRegistry) -> dict[str, int]:
    """Ingestor -> number of messages that are rows or dead letters."""
    return {name: status.rows + status.bad_records for name, status in registry.ingestors().items()}


def origins(lake: Lake) -> list[tuple[str, int, int]]:
    return sorted((r["_tarn"]["source"], r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in lake.rows())


def registered(lake: Lake) -> int:
    """Number of dead letters in their table."""
    return lake.table("ops.dead_letters").total("records") or 0


def wanted(*names: str) -> list[tuple[str, int, int]]:
    return sorted((name, p, o) for name in names for p in (0, 1) for o in range(20))


def test_the_topics_of_a_list_are_streams_of_one_table(tmp_path: Any, topics: dict[str, Topic]) -> None:
    lake = Lake(*topics.values())
    run = Run(lake, tmp_path, orders=text("{topics: [shop.eu, shop.us]}"))
    run.until(lambda registry: sum(taken(registry).values()) == 82 and registered(lake) == 2)
    assert set(taken(run.registry)) == {"orders.shop.eu", "orders.shop.us"}
    assert origins(lake) == wanted("shop.eu", "shop.us")
    state = lake.table()
    assert streams_named(state) == {"orders.shop.eu", "orders.shop.us"}
    for name in ("shop.eu", "shop.us"):
        held = offsets_in(state, f"orders.{name}")
        assert held is not None
        assert (held.source.topic, dict(held.next)) == (name, {0: 21, 1: 20})
    letters = lake.rows("ops.dead_letters")
    assert sorted((r["ingestor"], r["source"], r["offset"]) for r in letters) == [
        ("orders.shop.eu", "shop.eu", 20),
        ("orders.shop.us", "shop.us", 20),
    ]


def test_a_topic_that_is_added_to_the_list_begins_and_the_others_go_on(
    tmp_path: Any, topics: dict[str, Topic]
) -> None:
    lake = Lake(*topics.values())
    Run(lake, tmp_path, orders=text("{topics: [shop.eu]}")).until(lambda r: sum(taken(r).values()) == 41)
    lake.stop = False
    topics["shop.eu"].send(1, order(999))
    again = Run(lake, tmp_path, orders=text("{topics: [shop.us, shop.eu]}"))
    again.until(lambda registry: sum(taken(registry).values()) == 42)
    assert origins(lake) == sorted([*wanted("shop.eu", "shop.us"), ("shop.eu", 1, 20)])


def test_a_pattern_takes_whole_names_and_follows_new_topics(
    tmp_path: Any, topics: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "TOPICS_LOOK_S", 0.05)
    monkeypatch.setattr(MemoryTopicClient, "list_topics", slowly)
    late = topics.pop("shop.us")
    lake = Lake(*topics.values())
    run = Run(lake, tmp_path, orders=text(r"{topicPattern: 'shop\.[a-z]+'}"))

    def done(registry: StatusRegistry) -> bool:
        if sum(taken(registry).values()) == 41:
            lake.sources.topics["shop.us"] = late
        return sum(taken(registry).values()) == 82

    run.until(done)
    assert origins(lake) == wanted("shop.eu", "shop.us")
    assert set(taken(run.registry)) == {"orders.shop.eu", "orders.shop.us"}


def test_a_pattern_without_a_topic_says_so_and_waits(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    lake = Lake(Topic("else", 1))
    looks: list[StatusRegistry] = []
    run = Run(lake, tmp_path, orders=text("{topicPattern: 'shop.*'}"))

    def listed() -> list[str]:
        time.sleep(0.01)
        looks.append(run.registry)
        status = run.registry.get("orders")
        shown.append((status.state, status.reason, status.message))
        if len(looks) == 2:
            raise UnavailableError("no broker answers")
        if len(looks) == 3:
            raise RuntimeError("unforeseen")
        if len(looks) == 5:
            lake.stop = True
        return ["else"]

    shown: list[tuple[State, str, str]] = []
    monkeypatch.setattr(lake.sources, "list_topics", listed)
    run.until(lambda _: False)
    none = (State.WAITING, "NoSuchTopic", "no topic matches 'shop.*'; looking again every 30 s")
    assert shown[1:3] == [none, (State.WAITING, "Unavailable", "no broker answers")]
    assert shown[3][:2] == (State.STOPPED, "Defect")
    assert shown[4] == none
    unwell = [fault for fault in faults(run.registry, now_s=lake.clock.now_s) if "orders" in fault]
    assert unwell == [], "a topic that is not there is nobody's outage"
    logged.clear()


def test_one_of_two_specs_for_a_table_goes_on_if_the_table_has_a_stream_of_it(
    tmp_path: Any, topics: dict[str, Topic], logged: list[Any]
) -> None:
    lake = Lake(*topics.values())
    many = text("{topics: [shop.eu, shop.us]}")
    Run(lake, tmp_path, orders=many).until(lambda r: sum(taken(r).values()) == 82)
    lake.stop = False
    topics["shop.us"].send(0, order(999))
    other = text("{topic: else}").replace("metadata: {name: orders}", "metadata: {name: other}")
    run = Run(lake, tmp_path, orders=many, other=other)
    run.until(lambda r: sum(taken(r).values()) == 1)
    assert "orders.yaml goes on" in run.registry.get("other.yaml").message
    assert ("else", 0, 0) not in origins(lake)
    logged.clear()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{}", "give topic, topics or topicPattern; found none of them"),
        ("{topic: a, topics: [b]}", "give topic, topics or topicPattern; found topic and topics"),
        ("{topics: []}", "spec.source.kafka.topics"),
        ("{topics: [a, b, a]}", "topics names a twice"),
        ("{topics: ['a b']}", "spec.source.kafka.topics.0"),
        ("{topicPattern: 'a{99999999999}'}", "is not a regular expression"),
        ("{topicPattern: 'a['}", "'a[' is not a regular expression: unterminated character set"),
        ("{topicPattern: '(?!a).*'}", "neither lookarounds nor back references: invalid perl operator: (?!"),
        ("{topicPattern: 'a.*', create: true}", "create needs the names of the topics"),
    ],
)
def test_a_source_is_one_topic_a_list_or_a_pattern(source: str, reason: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        spec(source)
    assert reason in str(caught.value)


def test_a_pattern_takes_no_longer_for_what_nearly_matches() -> None:
    """Of a backtracking matcher, `(a+)+b` takes twice as long for each further letter."""
    source = spec("{topicPattern: '(a+)+b|(?i:C.*)'}").spec.source.kafka
    assert not source.matches("a" * 249)
    names = ("aab", "aabx", "xaab", "Cd", "cd", "xcd")
    assert [name for name in names if source.matches(name)] == ["aab", "Cd", "cd"]


def test_a_spec_of_one_topic_keeps_its_name_and_stream() -> None:
    one = spec("{topic: shop.eu}")
    assert one.per_topic(["shop.us"]) == (one,)
    (derived,) = spec("{topics: [shop.eu]}").per_topic(["shop.eu"])
    assert (derived.name, derived.stream, derived.topic) == ("orders.shop.eu", "orders.shop.eu", "shop.eu")
    named = text("{topics: [a, b]}").replace("{name: orders}", "{name: orders, stream: first}", 1)
    assert [d.stream for d in parse_spec(named, file="x").per_topic(["a", "b"])] == ["first.a", "first.b"]


@pytest.mark.parametrize(
    ("other", "stream", "advice"),
    [
        ("orders", "sales", "metadata.stream: orders"),
        ("orders.shop.eu", "sales.shop.eu", "metadata.stream: orders, and the topic in topics"),
        ("orders.shop.eu", "orders", "metadata.stream: orders, and the topic in topics"),
        ("orders", "orders.shop.eu", "cannot become one of several: keep topic: shop.eu"),
    ],
)
def test_the_way_out_of_a_second_stream_is_one_that_a_spec_can_take(
    other: str, stream: str, advice: str
) -> None:
    assert _way_out(other, stream, "shop.eu").endswith(advice)


def test_a_pattern_that_became_one_topic_leaves_the_status_of_its_reader_alone(
    topics: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of a spec with one topic has the name under which a pattern says that nothing matches."""
    monkeypatch.setattr(MemoryTopicClient, "list_topics", slowly)
    lake = Lake(*topics.values())
    watch = topic_watch.TopicWatch(lake.context())
    pattern = spec("{topicPattern: 'shop.*'}")
    late_s = time.monotonic() + WITHIN_S
    while not watch.topics(pattern):
        assert time.monotonic() < late_s
        time.sleep(0.005)
    assert watch.topics(spec("{topic: shop.eu}")) == ("shop.eu",)
    lake.registry.update("orders", state=State.RUNNING, stream="orders")
    time.sleep(0.2)
    assert lake.registry.get("orders").state is State.RUNNING
    watch.keep(frozenset())
    assert lake.registry.get("orders").state is State.RUNNING
    lake.stop = True


def test_a_pattern_that_comes_back_is_compared_once_at_a_time(
    topics: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryTopicClient, "list_topics", slowly)
    lake = Lake(*topics.values())
    watch = topic_watch.TopicWatch(lake.context())
    # A thread of an earlier test may be on its way out.
    before = set(threading.enumerate())

    def comparing() -> int:
        return len([one for one in set(threading.enumerate()) - before if one.name == "topics-orders"])

    for _ in range(3):
        watch.topics(spec("{topicPattern: 'shop.*'}"))
        watch.keep(frozenset())
    watch.topics(spec("{topicPattern: 'shop.*'}"))
    late_s = time.monotonic() + WITHIN_S
    while comparing() > 1:
        assert time.monotonic() < late_s
        time.sleep(0.005)
    assert comparing() == 1
    lake.stop = True


def test_a_pattern_without_a_thread_is_compared_later(
    topics: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "topics-orders":
            raise RuntimeError("can't start new thread")
        inner(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    lake = Lake(*topics.values())
    watch, pattern = topic_watch.TopicWatch(lake.context()), spec("{topicPattern: 'shop.*'}")
    assert watch.topics(pattern) is None, "no other ingestor is the worse for it"
    monkeypatch.setattr(threading.Thread, "start", inner)
    late_s = time.monotonic() + WITHIN_S
    while not watch.topics(pattern):
        assert time.monotonic() < late_s
        time.sleep(0.005)
    lake.stop = True
