"""Iceberg table metadata: schemas, updates, requirements, snapshots. Pure functions on parsed JSON."""
