"""The keeper looks after the lake as a whole: audit (fsck), backup, restore. It writes only in a restore."""
