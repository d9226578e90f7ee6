"""The ingestor spec: the schema of its YAML file, and messages that name what is wrong in one.

One file defines one ingestor. Nothing is guessed: an unknown field, a wrong type or a reference to a missing
column is an `InvalidSpecError` that names the file, the path in it, the value and what is allowed.
"""

from tarn.core.offsets import TRACE_COLUMN
from tarn.core.spec.clashes import Clash, clashes, settle
from tarn.core.spec.fields import REST, FieldSpec, SchemaSpec
from tarn.core.spec.ingestor import DeadLetters, IngestorBody, IngestorSpec
from tarn.core.spec.mapping import FieldMapping
from tarn.core.spec.parse import parse_document, parse_spec, spec_of
from tarn.core.spec.source import TOPIC_PATTERN, AvroMessages, MessageFormat
from tarn.core.spec.table import PartitionRule, TableRef

__all__ = [
    "REST",
    "TOPIC_PATTERN",
    "TRACE_COLUMN",
    "AvroMessages",
    "Clash",
    "DeadLetters",
    "FieldMapping",
    "FieldSpec",
    "IngestorBody",
    "IngestorSpec",
    "MessageFormat",
    "PartitionRule",
    "SchemaSpec",
    "TableRef",
    "clashes",
    "parse_document",
    "parse_spec",
    "settle",
    "spec_of",
]
