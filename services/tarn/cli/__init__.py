"""The command line.

main       the commands: read options, call, print
extensions commands that other packages add
wiring     the adapters, put together from the settings
canary     one row through everything, checked
status     what the lake looks like right now
layers     how far the layers are behind their topic
hostenv    settings for clients on the host
pages      report and status for people
answers    rows as a table, JSON or CSV
deadline   a limit on work that has none
ports      what the flows need from outside, as small interfaces
clients/   the adapters: catalog, Kafka, Trino, Spark, DuckDB, plain HTTP
"""
