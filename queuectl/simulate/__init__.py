"""A discrete-event simulation of queues: a trace of jobs, nodes and a configuration to waits, completions and allocation. No I/O."""
