"""queuectl."""
