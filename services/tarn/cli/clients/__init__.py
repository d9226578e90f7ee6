"""Adapters of the command line; vendor types and vendor errors stop here."""
