"""Tarn's Python services; docs/architecture.md describes the folders."""
