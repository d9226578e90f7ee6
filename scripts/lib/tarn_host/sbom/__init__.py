"""scripts/sbom: software bill of materials (SBOM) of each image."""
