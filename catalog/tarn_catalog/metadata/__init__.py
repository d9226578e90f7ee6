"""Iceberg table metadata: schemas, updates, requirements, snapshots. Pure."""
