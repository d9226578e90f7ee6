"""Helpers shared by tests of several tiers."""
