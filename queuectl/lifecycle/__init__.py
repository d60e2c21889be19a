"""The life cycle of a workload: the state machine, what brings it forward, and the writes it owes the cluster."""
