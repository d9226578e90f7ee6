"""Ingestion: Kafka topics into Iceberg tables, each record exactly once."""
