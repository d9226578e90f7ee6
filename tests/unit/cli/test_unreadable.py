"""Reasons why a table could not be read: the true cause, and MinIO only for errors of its own."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pydantic import BaseModel, ValidationError, field_validator

from tarn.cli.clients.unreadable import READING_ERRORS, unreadable
from tarn.core.errors import (
    CorruptStateError,
    ForbiddenError,
    InvalidError,
    TarnError,
    UnavailableError,
)

ENDPOINT = "http://minio:9000"


def judged(error: Exception) -> TarnError:
    assert isinstance(error, READING_ERRORS)
    return unreadable(error, table="ops.canary", endpoint=ENDPOINT)


@pytest.mark.parametrize(
    ("error", "kind", "part"),
    [
        (
            OSError(
                "Not yet implemented: DecodeArrow of DictAccumulator for DeltaLengthByteArrayDecoder. (x)"
            ),
            InvalidError,
            "ALTER TABLE ops.canary EXECUTE optimize",
        ),
        (OSError("Not yet implemented: something else"), InvalidError, "--engine trino or spark"),
        (ValueError("Unsupported file format: FileFormat.AVRO"), InvalidError, "FileFormat.AVRO"),
        (NotImplementedError("equality deletes"), InvalidError, "--engine trino or spark"),
        (FileNotFoundError("tarn/warehouse/a.parquet"), CorruptStateError, "run scripts/tarn fsck"),
        (OSError("AWS Error NO_SUCH_KEY during GetObject"), CorruptStateError, "not in the store"),
        (pa.ArrowInvalid("Parquet magic bytes not found in footer"), CorruptStateError, "scripts/tarn fsck"),
        (OSError("AWS Error ACCESS_DENIED during HeadObject"), ForbiddenError, "logs bootstrap"),
    ],
)
def test_what_is_not_the_stores_fault_is_not_blamed_on_it(error: Exception, kind: type, part: str):
    told = judged(error)
    assert type(told) is kind
    assert part in told.message
    assert "ops.canary" in told.message
    assert "minio running" not in told.message


def test_a_store_that_does_not_answer_is_named():
    told = judged(OSError("AWS Error NETWORK_CONNECTION during GetObject: curlCode: 7"))
    assert type(told) is UnavailableError
    assert told.fields["address"] == ENDPOINT
    assert "docker compose logs minio" in told.message


def test_a_type_that_the_library_does_not_know_is_one_short_line():
    class Field(BaseModel):
        type: str

        @field_validator("type")
        @classmethod
        def _known(cls, value: str) -> str:
            raise ValueError(f"Unsupported field type: {value!r}")

    with pytest.raises(ValidationError) as caught:
        Field(type="variant")
    told = judged(caught.value)
    assert type(told) is InvalidError
    assert "(ValidationError: Unsupported field type: 'variant'); read it with" in told.message
    assert "errors.pydantic.dev" not in told.message


def test_a_long_reason_is_cut():
    error = judged(ValueError("x" * 10_000))
    assert 250 < error.message.count("x") <= 300
