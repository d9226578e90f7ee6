"""Helpers that tests of several tiers share."""
