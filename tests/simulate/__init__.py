"""The simulation of traces, without a cluster."""
