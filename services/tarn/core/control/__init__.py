"""Declared ingestors: stored specs, what is to be done about them, and what is reported. Pure."""
