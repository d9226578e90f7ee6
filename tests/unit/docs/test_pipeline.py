"""What docs/pipeline.md says of the jobs, against their code."""

from __future__ import annotations

from tarn_host.stack.project import ROOT

from tarn_jobs.pipeline import OFFSETS_MAX


def test_the_page_says_how_many_offsets_a_piece_has() -> None:
    page = (ROOT / "docs/pipeline.md").read_text(encoding="utf-8")
    assert f"in pieces of at most {OFFSETS_MAX:,} offsets" in " ".join(page.split())
