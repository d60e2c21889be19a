"""The form of the statuses, for each owner of the configuration whose objects have one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from queuectl.objects.configuration.owners import Owner
from queuectl.ownership.kueue_status import KueueStatusForm
from queuectl.ownership.own_status import OwnStatusForm
from queuectl.ownership.status_form import StatusForm

FORMS: Final[Mapping[Owner, StatusForm]] = MappingProxyType(
    {Owner.KUEUE: KueueStatusForm(), Owner.KUBERNETES: OwnStatusForm()}
)
