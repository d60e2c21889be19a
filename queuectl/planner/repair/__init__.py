"""Running gangs that lost nodes: their lost pods are placed again, with victims or a restart where nothing else helps."""
