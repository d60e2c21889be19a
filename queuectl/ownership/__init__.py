"""The leader follows configuration that objects of the cluster own, generic over :data:`queuectl.objects.configuration.owners.FOLLOWED`.

    source ──deltas──▶ observed ──objects──▶ reducer ──batch──▶ follower ──one fenced transaction──▶ the catalog in Postgres

The catalog stays what the planner reads, so no plan waits for the API server, and a restart decides the same. ``observed``, ``effects``,
``reducer`` and ``statuses`` do no I/O. ``status_writer`` writes the status of each object, which does not count as an edit. Unknown is not empty: a kind
whose objects cannot be listed keeps its stored documents.
"""
