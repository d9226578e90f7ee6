"""scripts/test and .ci/run."""
