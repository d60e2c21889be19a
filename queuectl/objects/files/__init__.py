"""Files of Kubernetes objects to snapshots, and plans to documents."""
