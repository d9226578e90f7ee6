"""Tarn's Python services: see docs/architecture.md for what lies where."""
