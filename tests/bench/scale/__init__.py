"""Systems that start gangs, measured whole on up to 10,000 simulated nodes: `make bench-scale`.

A run has one system and one size. It fills the cluster once, keeps the data of etcd and of the database outside the repository, and
restores both for each row. The modules:

- `fleet`: the nodes, the quota tree, and their documents;
- `gangs`: a gang, independent of the system that starts it;
- `fill`: the gangs that occupy 75% of the GPUs;
- `systems`: what a system under test does, the floor (no queue controller), and queuectl;
- `kubelet`: starts programs of a system again that end by themselves;
- `snapshots`: the filled clusters on the disk;
- `stage`: a running cluster with a system, restored for a row;
- `times`: times and writes from the audit log of the API server;
- `rows`, `rows_starts`, `rows_changes`: what is measured;
- `conditions`: machine, versions, flags and limits;
- `records`, `tables`, `pictures`: the results as JSON lines, Markdown and SVG.
"""
