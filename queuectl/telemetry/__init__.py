"""What queuectl says of itself: metrics and logs. See docs/reference/metrics.md."""
