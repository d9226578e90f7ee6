"""Test doubles shipped with the services, left out of images.

memory_topic    topics in memory, behind the interface of a topic client
faulty_catalog  a catalog that loses, delays, duplicates and denies commits
executors       work that runs when the test says so
folder_files    files of a lake in a local folder
lake            a store in memory, topics, ingestors, and what a reader finds in the tables
"""
