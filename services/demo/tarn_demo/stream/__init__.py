"""Live windows over the demo's flights: a service on Faust (docs/stream.md, ADR 42).

- topics: which topics there are
- flight_event: what a message of flight-events says
- windows: the windows of one partition, as a function of its log
- partials: what partitions publish for each other, as messages
- merge: windows of all partitions, complete and in order
- alerts: what is worth an alert
- rows: the messages that become rows of live.route_delays and live.alerts
- view: the current windows and the last alerts
- names: airports by code
- steps: the two functions that make the results, with their states as records
- tasks: runs the steps of the partitions of this process, from stored states on
- progress: whether the partitions of this process go on
- settings, kafka_topics, kafka_reads, faust_app, web, service: the process

All but tasks and the last line is pure: no Kafka, no clock.
"""
