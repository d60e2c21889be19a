"""`queuectl demo`: a rush of gangs on a real control plane, watched live and audited from outside.

Start with :mod:`~queuectl.demo.demo_run`, which runs the whole; what is on the programme stands in
:mod:`~queuectl.demo.scenario`. Three modules are of use to tests and benchmarks as well:

- :mod:`~queuectl.demo.manifests`: Jobs, PyTorchJobs and configuration documents as plain dicts
- :mod:`~queuectl.demo.recorder`: writes down every revision of nodes, jobs and pods, read from the API server
- :mod:`~queuectl.demo.audit`: replays such a recording and says whether gangs were whole, inside their domains, within
  capacity and never started twice

The audit shares the readers of :mod:`queuectl.objects` with the controller, and nothing else: no decision of the
controller, and no word of its database or API, enters it.
"""
