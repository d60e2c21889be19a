"""The results of a run of the fuzzer: inputs of each stage, features and pairs of features, and defects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.planner.feature_counts import FeatureCounts


@dataclass
class Result:
    """Of one input.

    Attributes:
        features: of the input, for the counts of singles and pairs.
        counted: what happened to it, for example how many of its objects were refused.
        defects: one sentence or trace for each; empty for an input that is handled as documented.
    """

    features: frozenset[str] = frozenset()
    counted: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Stage:
    """One part of the fuzzer.

    Attributes:
        name: of the stage.
        run: handles the input of a seed.
        features: each of these, and each pair of them, must occur.
    """

    name: str
    run: Callable[[int], Result]
    features: frozenset[str]


@dataclass
class Figures:
    """Of one stage."""

    name: str
    expected: frozenset[str]
    inputs: int = 0
    seconds: float = 0.0
    counted: Counter[str] = field(default_factory=Counter)
    features: FeatureCounts = field(default_factory=FeatureCounts)
    defects: dict[int, list[str]] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)  # seeds of inputs that ended the process

    def note(self, seed: int, result: Result, seconds: float) -> None:
        """One input."""
        self.inputs += 1
        self.seconds += seconds
        self.counted.update(result.counted)
        self.features.note(result.features)
        if result.defects:
            self.defects[seed] = result.defects

    def missing(self) -> list[str]:
        """The features, and the pairs of them, that never occurred."""
        return self.features.missing(self.expected)

    def text(self) -> str:
        """All figures, for people."""
        expected, missing = len(self.expected), self.missing()
        pairs = expected * (expected - 1) // 2
        seen = {
            pair: n for pair, n in self.features.pairs.items() if self.expected.issuperset(pair)
        }
        rarest = min(seen.items(), key=lambda item: item[1], default=None)
        lines = [
            f"== {self.name}: {self.inputs} inputs in {self.seconds:.0f} s",
            *(f"   {what}: {count}" for what, count in sorted(self.counted.items())),
            f"   features: {expected}, pairs of features: {pairs}, never: {len(missing)}",
        ]
        if rarest is not None:
            lines.append(
                f"   the rarest pair: {rarest[0][0]} and {rarest[0][1]}, {rarest[1]} times"
            )
        lines += [f"   never: {name}" for name in missing[:20]]
        singles = sorted(self.features.single.items(), key=lambda item: item[1])
        lines += [f"   {name}: {count}" for name, count in singles]
        lines.append(f"   inputs that ended the process: {len(self.ended)} {self.ended or ''}")
        lines.append(f"   inputs with a defect: {len(self.defects)} {sorted(self.defects) or ''}")
        return "\n".join(lines)
