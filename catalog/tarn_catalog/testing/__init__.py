"""For tests and notebooks: a server in a thread, a store that fails on purpose."""
