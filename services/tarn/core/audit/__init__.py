"""Integrity rules of a whole lake, checked on a model of it: pure, and sharing no code with any writer."""
