"""The Grafana dashboards of queuectl, as code. ``make dashboards`` writes the JSON that people import, next to this folder."""
