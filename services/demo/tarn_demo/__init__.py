"""The demo: a year of real flights, played into the lake and turned into answers.

- flights: the data set as a stream of events, and what plays it into Kafka
- loading: plays the whole year and waits until every layer holds it
- driver: the process that runs the pipeline of tarn_jobs
- flight_tables: how far the demo's tables are, from the REST catalog
- cli: the commands `tarn demo` and `tarn pipeline`
- bench: the measurements that use the demo's stream and tables

It uses `tarn` and `tarn_jobs`; neither imports it. The command line finds its commands by the entry
point group `tarn.commands`.
"""
