"""Tarn's Iceberg catalog. All of its state lives in the object store."""
