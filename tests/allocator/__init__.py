"""Random gangs with claims for devices against the real kube-scheduler: it binds each pod that queuectl pins. Run by `make test-devices`."""
