"""The operations of the catalog, independent of the transport."""
