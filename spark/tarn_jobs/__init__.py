"""Tarn's Spark jobs: from bronze.flight_events to silver.flights to four gold tables.

- schema: the tables and their columns, as data
- transforms: DataFrame -> DataFrame
- statements: the SQL that writes, as text
- position: how far a table has come, as data
- lake: reads and writes of one Spark session
- pipeline: the steps and their order
- reference: the tables that describe airlines, airports, planes and weather

Works with PySpark of either kind: classic, or a Spark Connect client.
"""
