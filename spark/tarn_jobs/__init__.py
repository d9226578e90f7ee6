"""Tarn's Spark jobs: from bronze.flight_events to silver.flights to four gold tables.

- schema: the tables and their columns, as data
- transforms: DataFrame -> DataFrame
- statements: DDL and MERGE, as SQL text
- position: the stream position that a table has reached, as data
- lake: reads and writes of one Spark session
- pipeline: the steps and their order
- reference: the tables that describe airlines, airports, planes and weather

Works with classic PySpark and with a Spark Connect client.
"""
