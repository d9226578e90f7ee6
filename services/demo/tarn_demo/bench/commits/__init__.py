"""`scripts/bench commit`: what one commit costs, of Tarn and of others, on one store."""
