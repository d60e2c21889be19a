"""Running gangs that lost nodes: their pods placed anew, with victims or a restart where nothing else helps."""
