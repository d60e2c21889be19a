"""Sources of GPU utilization: a Prometheus, or the exporters."""
