"""What `scripts/bench` runs inside the network."""
