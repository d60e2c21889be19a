"""`python -m queuectl.localcluster`: the commands of this package alone."""

from queuectl.localcluster.commands import app

app(prog_name="python -m queuectl.localcluster")
