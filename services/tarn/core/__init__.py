"""Pure core: no sockets, clock, randomness, environment or logging (enforced by import-linter)."""
