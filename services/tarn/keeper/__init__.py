"""The keeper: audit (fsck), backup and restore of the whole lake. Only a restore writes."""
