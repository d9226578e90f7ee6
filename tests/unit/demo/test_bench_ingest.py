"""The benchmark's freshness figures follow from the times at which messages were seen."""

from __future__ import annotations

import pytest

from tarn_demo.bench.figures import at_share
from tarn_demo.bench.ingest import VisibilityLog


def test_a_record_is_as_old_as_the_first_look_that_shows_it() -> None:
    seen = VisibilityLog()
    seen.record({0: 10, 1: 0}, at_ms=1_000)
    seen.record({0: 10, 1: 5}, at_ms=2_000)
    seen.record({0: 12, 1: 5}, at_ms=3_000)
    assert seen.age_ms(0, 9, sent_ms=400) == 600
    assert seen.age_ms(0, 10, sent_ms=2_100) == 900, "offset 10 is the first that the first look did not show"
    assert seen.age_ms(1, 0, sent_ms=1_999) == 1
    assert seen.covers({0: 12, 1: 5, 2: 0})
    assert not seen.covers({0: 13, 1: 5})
    assert not seen.covers({2: 1})
    with pytest.raises(IndexError):
        seen.age_ms(1, 5, sent_ms=0)


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.95, 95), (1.0, 100), (0.001, 1)])
def test_a_share_of_ordered_values_is_one_of_them(share: float, value: int) -> None:
    assert at_share(list(range(1, 101)), share) == value
