"""`queuectl serve` as a process of a rig, which ends with the check that it has set no unit aside."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from queuectl.demo.controller import ControllerProcess
from queuectl.localcluster.supervisor import KeeperHandle
from tests.support.contained import OPEN, SetAsideLog, contained


class CheckedController(ControllerProcess):
    """A controller of a rig.

    It fails the rig if it has set a unit aside, unless a test with the mark ``sets_aside`` ran in the meantime: that test poisons a unit. The
    log of the process is read, also after SIGKILL. Under pytest, each test fails for what was set aside until its end.
    """

    def __init__(
        self, home: Path, supervisor: KeeperHandle, environment: Mapping[str, str]
    ) -> None:
        super().__init__(home, supervisor, environment)
        self._set_aside = SetAsideLog(self.log)
        OPEN.append(self._set_aside)

    def stop(self) -> None:
        """Stop it and remove its folder.

        Raises:
            AssertionError: it has set a unit aside.
        """
        found = contained(self, self._set_aside)
        super().stop()
        with suppress(ValueError):  # it was stopped before
            OPEN.remove(self._set_aside)
        assert not found, "\n".join(found)
