"""Logs of the services are captured; an ERROR that the test did not expect fails it."""

from tests.contract.ingest.conftest import logged

__all__ = ("logged",)
