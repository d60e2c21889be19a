"""The live picture the leader works on: what the watch says, what the ledger says, and the two put together.

- :mod:`mirror`: the cluster as the watch last showed it
- :mod:`usage`: which pod counts where
- :mod:`ledger`: the leader's working copy of the database
- :mod:`observe`: what the mirror says happened to a workload
- :mod:`freeze`: mirror + ledger + configuration -> Snapshot

Single writer, synchronous, no I/O: the shell (control/) calls in from one event loop.
"""
