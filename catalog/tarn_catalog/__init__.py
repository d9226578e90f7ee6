"""Tarn's Iceberg catalog: its whole state lives in the object store."""
