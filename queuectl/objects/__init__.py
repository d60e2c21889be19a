"""Pure readers and writers between Kubernetes or Kueue-shaped documents and the domain's values.

Reading takes two steps: bytes or plain dicts become :mod:`wire` structs that name only the fields needed, then the
structs are projected to the slim records of :mod:`queuectl.domain.records`. The same structs serve the watch
(``msgspec.json``) and YAML files (``msgspec.convert``).

- :mod:`keys`: labels, annotations and gates, ours and Kueue's
- :mod:`nodes`, :mod:`pods`, :mod:`kinds`: objects of the cluster to records, and the patches written back
- :mod:`requests`, :mod:`templates`: what one pod asks for, and what a pod template asks of placement
- :mod:`documents`: YAML and JSON streams, and the address of an error in them
- :mod:`config`: ClusterQueue and its relatives to a QueueConfig
- :mod:`snapshots`, :mod:`plans`: a stream of objects to a Snapshot, and a Plan to the document people read
"""
