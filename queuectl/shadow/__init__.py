"""Shadow mode: observes a cluster that another controller manages, and reports. It starts nothing and writes to no object of the cluster."""
