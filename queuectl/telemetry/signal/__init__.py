"""Where GPU utilization comes from: a Prometheus, or the exporters themselves."""
