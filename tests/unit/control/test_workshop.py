"""What an ingestor of the workshop may say; whoever may write its spec may write no other."""

from __future__ import annotations

from typing import Any

import pytest

from tarn.core.control.admission import require_workshop
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import spec_of


def document(name: str = "ws-ada-orders", **changed: Any) -> dict[str, Any]:
    """A spec of ada's; `changed` are fields of its body, or `stream`."""
    stream = changed.pop("stream", None)
    return {
        "apiVersion": "tarn/v1",
        "kind": "Ingestor",
        "metadata": {"name": name} if stream is None else {"name": name, "stream": stream},
        "spec": {
            "source": {"kafka": {"topic": "workshop.ada.orders"}},
            "table": {"namespace": "ws_ada", "name": "orders"},
            "schema": {"fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "timestamptz"}]},
            **changed,
        },
    }


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"table": {"namespace": "ws_ada.deep", "name": "orders"}},
        {"source": {"kafka": {"topics": ["workshop.ada.a", "workshop.bob.b"]}}},
        {"source": {"kafka": {"topic": "tarn.log.0b9c6b0e-0000-4000-8000-000000000000"}}},
        {"deadLetters": {"table": {"namespace": "ws_ada", "name": "letters"}}},
        {"stream": "ws-ada-former"},
        {"eventTime": {"column": "at"}},
    ],
)
def test_its_own_is_allowed(changed: dict[str, Any]) -> None:
    require_workshop(spec_of(document(**changed), file="f"), file="f")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"table": {"namespace": "bronze", "name": "orders"}}, "spec.table is 'bronze.orders'"),
        ({"table": {"namespace": "gold.ws_ada", "name": "orders"}}, "spec.table is 'gold.ws_ada.orders'"),
        (
            {"deadLetters": {"table": {"namespace": "gold", "name": "letters"}}},
            "spec.deadLetters.table is 'gold.letters'",
        ),
        ({"source": {"kafka": {"topic": "flight-events"}}}, "spec.source.kafka is 'flight-events'"),
        (
            {"source": {"kafka": {"topics": ["workshop.ada.a", "flight-events"]}}},
            "spec.source.kafka is 'flight-events'",
        ),
        ({"source": {"kafka": {"topicPattern": "workshop.*"}}}, "topicPattern is 'workshop.*'"),
        ({"stream": "flights"}, "metadata.stream is 'flights'"),
        ({"runAs": "bob"}, "spec.runAs is 'bob'"),
        (
            {"eventTime": {"column": "at", "completeTopic": "tarn.complete.gold"}},
            "spec.eventTime.completeTopic is 'tarn.complete.gold'",
        ),
    ],
)
def test_everything_else_is_refused_with_field_and_value(changed: dict[str, Any], words: str) -> None:
    spec = spec_of(document(**changed), file="f")
    with pytest.raises(InvalidSpecError, match=r"\Af: ") as raised:
        require_workshop(spec, file="f")
    assert words in raised.value.message
    assert "begins with 'ws-'" in raised.value.message
    other = spec_of({**document(**changed), "metadata": {"name": "sales"}}, file="f")
    require_workshop(other, file="f")
