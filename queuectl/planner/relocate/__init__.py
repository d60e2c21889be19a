"""Which running gangs to move so that a blocked one fits, at the least cost (defragmentation)."""
