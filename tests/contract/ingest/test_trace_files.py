"""The trace of a batch's files: from the ingestor to the swap of the table's pointer, in both processes."""

from __future__ import annotations

from tests.support.trace_files import traced_batch

FILES_MAX = 76


def test_the_trace_leads_from_the_ingestor_to_the_register() -> None:
    trace = traced_batch()
    for part in ("core/decode.py", "ingest/committer.py", "adapters/catalog_client.py"):
        assert f"services/tarn/{part}" in trace.ingest.files
    assert not [file for file in trace.ingest.files if file.startswith("catalog/")]
    for part in ("rest/routes.py", "operations/tables.py", "metadata/updates.py", "state/register.py"):
        assert f"catalog/tarn_catalog/{part}" in trace.catalog.files
    assert not [file for file in trace.catalog.files if "/ingest/" in file or "/testing/" in file]
    for one, other in (("ingestor", "bookkeeper"), ("bookkeeper", "committer"), ("committer", "group")):
        assert (f"services/tarn/ingest/{one}.py", f"services/tarn/ingest/{other}.py") in trace.ingest.moves
    assert len({*trace.ingest.files, *trace.catalog.files}) <= FILES_MAX
