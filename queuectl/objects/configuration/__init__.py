"""The configuration kinds, ours and those of Kueue, to a QueueConfig."""
