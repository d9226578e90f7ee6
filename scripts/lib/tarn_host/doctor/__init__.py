"""scripts/doctor: look, judge, report."""
