"""scripts/doctor: collect facts, diagnose, report."""
