"""Adapters: object store, catalog, Kafka, files. Vendor types stop here."""
