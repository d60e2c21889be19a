"""The way back to Kueue: the Workloads that Kueue would have for the running gangs of queuectl. No I/O."""
