"""scripts/bench: measurements and the page generated from them."""
