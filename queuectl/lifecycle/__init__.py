"""The life cycle of a workload: the state machine, the events that advance it, and the writes that it owes the cluster."""
