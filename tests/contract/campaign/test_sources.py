"""What is said to have run in a result is what the processes of the campaign load, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign import results, simulate
from tests.campaign.sources import ROOT
from tests.campaign.through import Through
from tests.support.turns import one_after_the_other

ALWAYS = {
    "catalog/tarn_catalog/state/transactions.py",
    "services/tarn/adapters/manifests.py",
    "services/tarn/ingest/bookkeeper.py",
    "tests/campaign/runs.py",
    "tests/campaign/world.py",
    "tests/contract/catalog/schedule.py",
    "tests/support/lake.py",
    "uv.lock",
}
NEVER = {f"tests/campaign/{name}.py" for name in ("commands", "page", "results", "simulate", "mutants")}
GATEWAY = {"services/tarn/gateway/inbox.py", "tests/campaign/gateway_world.py"}
LOG = {"tests/campaign/gateway_log.py", "services/tarn/testing/memory_log.py"}
WAYS: dict[Through, tuple[set[str], set[str]]] = {
    "ingest": (ALWAYS, NEVER | GATEWAY | LOG),
    "gateway": (ALWAYS | GATEWAY, NEVER | LOG),
    "log": (ALWAYS | GATEWAY | LOG, NEVER),
}


TURN_OF = one_after_the_other(
    WAYS, "a result names a source that its way does not load, or lacks one", times=2
)


@pytest.mark.parametrize("through", [pytest.param(way, marks=TURN_OF[way]) for way in WAYS])
def test_the_sources_of_a_result_are_what_its_way_loads(through: Through, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for seeds in (1, 2):
        simulate.simulate(
            [4], seeds=seeds, first=0, file=file, processes=1, minutes=5, replicas=(1,), through=through
        )
    result = results.read(file)
    assert result.short() == result.failures() == []
    assert (len(result.commits), result.commits[0].runs) == (1, 2)
    loaded, not_loaded = WAYS[through]
    assert loaded <= set(result.sources)
    assert not not_loaded & set(result.sources)
    assert all((ROOT / path).is_file() for path in result.sources)
    if through == "ingest":
        other = ("tests/campaign/gateway_", "services/tarn/gateway/")
        assert [path for path in result.sources if path.startswith(other)] == []
