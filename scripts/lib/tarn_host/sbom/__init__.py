"""scripts/sbom: the bill of materials of each image."""
