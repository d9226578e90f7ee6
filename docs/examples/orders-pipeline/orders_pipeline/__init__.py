"""A small pipeline: orders in a table of the lake become the revenue of each day."""
