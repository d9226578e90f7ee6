"""Health probes: the watch of a container and what its looks share. Stdlib only, copied into every image."""
