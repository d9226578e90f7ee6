"""Ingestion: topics into tables, each row exactly once."""
