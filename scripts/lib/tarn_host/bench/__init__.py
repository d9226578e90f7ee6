"""scripts/bench: measurements and the page made from them."""
