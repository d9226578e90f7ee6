"""The status API of ingest: ingestors, tables, commits, storage and services as JSON, each with a schema."""
