"""Health probes: the watch of a container and code shared by probes. Stdlib only, copied into each image."""
