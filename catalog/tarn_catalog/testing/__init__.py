"""For tests: the catalog as a server in a thread and as ingestion uses it, a store with injected faults."""
