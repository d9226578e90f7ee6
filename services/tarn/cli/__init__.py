"""The command line.

main       the commands: parse options, call, print
extensions commands that other packages add
wiring     adapters, constructed from the settings
canary     sends one row through the whole stack and checks it
status     current state of the lake
layers     lag of the layers behind their topic
hostenv    settings for clients on the host
render     report and status for people
formats    rows as a table, JSON or CSV
deadline   a time limit for work that has none
ports      interfaces of the flows to the outside
clients/   adapters: catalog, Kafka, Trino, Spark, DuckDB, plain HTTP
"""
