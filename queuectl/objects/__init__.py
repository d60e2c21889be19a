"""Pure readers and writers between Kubernetes or Kueue-shaped documents and the domain's values.

Reading takes two steps: bytes or plain dicts become :mod:`wire` structs that name only the fields needed, then the
structs are projected to the slim records of :mod:`queuectl.domain.records`. The same structs serve the watch
(``msgspec.json``) and YAML files (``msgspec.convert``).

- :mod:`documents`, :mod:`errors`, :mod:`keys`: streams of objects, the address of an error in them, labels and annotations
- :mod:`kubernetes`: nodes, pods, requests and quotas of the cluster to records
- :mod:`kinds`: one module per job kind
- :mod:`configuration`: ClusterQueues and related objects to a QueueConfig
- :mod:`proposal`: the nodes of a cluster to configuration for them
- :mod:`files`: a stream of objects to a Snapshot, and a Plan to a document
"""
