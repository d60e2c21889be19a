"""Random faults on a real control plane under load, audited from outside: `make chaos`."""
