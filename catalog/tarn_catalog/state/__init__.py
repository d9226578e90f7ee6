"""Register values in the object store: what the catalog knows, one conditional write per change."""
