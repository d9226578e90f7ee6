"""The catalog's state: register values in the object store, one conditional write per change."""
