"""The aggregated API that serves workloads to kubectl: read-only, in the group visibility.queuectl.dev.

kube-apiserver passes requests for the group to any replica. :mod:`queuectl.visibility.objects`, ``tables``, ``changes`` and
``discovery`` do no I/O. ``identity`` knows who sent a request, ``rows`` keeps the last known workloads, ``app`` answers, and
``service`` is the server with its certificates.
"""
