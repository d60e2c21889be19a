"""Metrics and logs of queuectl. See docs/reference/metrics.md and docs/reference/log-events.md."""
