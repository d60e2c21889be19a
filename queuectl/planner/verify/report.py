"""What the verifier says of a plan that breaks a rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """The rule a plan broke; the comment says what it protects."""

    PARTITION = "Partition"  # each pending gang stands in exactly one list
    WHOLE = "Whole"  # I1: every pod of the gang has a slot
    ELIGIBLE = "Eligible"  # node ready, selected, tolerated, not excluded
    TOPOLOGY = "Topology"  # required level, groups share a domain
    CAPACITY = "Capacity"  # I2: no node over its allocatable
    FLAVOR = "Flavor"  # charged as the ClusterQueue's resource groups say
    QUOTA = "Quota"  # I2: no ClusterQueue or cohort over its quota and limits
    RESOURCE_QUOTA = "ResourceQuota"  # no namespace over what Kubernetes lets it use
    MAX_PER_USER = "MaxPerUser"  # no user over what a ClusterQueue lets one hold
    INADMISSIBLE = "Inadmissible"  # blocked gang, stopped queue, namespace not selected
    ORDER = "Order"  # I3: nobody is passed in a StrictFIFO queue
    VICTIM = "Victim"  # I4: only legal victims, only for a named gang that fits
    MOVE = "Move"  # only gangs that may be, for a named gang that fits, to a place of their own, within budget
    LEASE = "Lease"  # a lease names its victims, has not ended, and gets what it is owed
    REPAIR = "Repair"  # healthy slots of a repaired gang stay
    REASON = "Reason"  # I7: every refusal says why


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: which, by whom or where (uid, node or queue), and a sentence with the numbers."""

    rule: Rule
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.subject}: {self.message}"
