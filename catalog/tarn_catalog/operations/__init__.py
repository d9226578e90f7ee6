"""What a client can ask of the catalog, without any transport."""
