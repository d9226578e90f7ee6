"""Rows over HTTP: the door for small writes."""
