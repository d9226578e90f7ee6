"""Test doubles shipped with the catalog: a server in a thread, a store with injected faults."""
