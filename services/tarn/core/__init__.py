"""Pure: no sockets, clock, chance, environment or logging (import-linter holds it to that)."""
