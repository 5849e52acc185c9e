"""Checksums that ranks must have alike: which rank computes wrongly.

AGREE-1  Ranks are named only where the checksums of the attempt were alike `LEAST_AGREED` times
         before, because a program whose ranks never agree compares what differs by nature.
AGREE-2  Of three ranks or more, those outside of the majority are named. Without a majority none is: the
         step is wrong, and the rank is not known.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Large

LEAST_AGREED = 3
MAX_TOLD = 16
_KEPT_STEPS = 256


class StepChecksum(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The checksum of one step of one rank, and the group of ranks that must have it alike."""

    step: Large
    text: Annotated[str, Meta(min_length=1, max_length=64)]
    group: Annotated[str, Meta(max_length=64)] = ""


StepChecksums = Annotated[list[StepChecksum], Meta(max_length=MAX_TOLD)]


class ChecksumRing:
    """The checksums of a rank that are not told yet. Where there are too many, those of every
    second step are left out, then of every fourth, so that ranks keep the same steps."""

    __slots__ = ("_kept", "_told")

    def __init__(self) -> None:
        self._kept: list[StepChecksum] = []
        self._told: list[StepChecksum] = []

    def add(self, checksum: StepChecksum) -> None:
        """Keep a checksum; the newest of a step counts."""
        same = (checksum.step, checksum.group)
        self._kept = [one for one in self._kept if (one.step, one.group) != same]
        self._kept.append(checksum)
        stride = 2
        while len(self._kept) > MAX_TOLD and stride < 1 << 20:
            self._kept = [one for one in self._kept if one.step % stride == 0]
            stride *= 2

    def take_checksums(self) -> list[StepChecksum]:
        """Return the checksums that are not told yet, and forget them."""
        kept = self._kept[-MAX_TOLD:]
        self._told, self._kept = self.list_last(), []
        return kept

    def list_last(self) -> list[StepChecksum]:
        """Return the newest checksums for the report of the rank's end, told ones too, because the
        sync that told them may have been lost, and the report is sent until it is acknowledged."""
        return [*self._told, *self._kept][-MAX_TOLD:]


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks whose checksums of a step differ. odd: the ranks outside of the majority; none where
    there is no majority. comparable: they were alike before (AGREE-1). texts: rank → checksum."""

    step: int
    odd: tuple[int, ...]
    comparable: bool
    texts: Mapping[int, str]


class Agreement:
    """Compares the checksums of one attempt, until they differ for the first time."""

    def __init__(self) -> None:
        self._steps: OrderedDict[int, dict[int, StepChecksum]] = OrderedDict()
        self._agreed = 0
        self._over = False
        self._alike: OrderedDict[int, str] = OrderedDict()

    def find_agreed(self, step: int) -> str | None:
        """Return the checksum that all ranks had at a step, None where it is not known."""
        return self._alike.get(step)

    def compare_checksums(
        self, rank: int, checksums: Sequence[StepChecksum], ranks: int
    ) -> Disagreement | None:
        """Add the checksums that a rank told; return the first disagreement of the gang of `ranks`
        ranks."""
        for told in checksums:
            if self._over:
                return None
            if told.step in self._alike:
                continue  # it was told before
            step = self._steps.setdefault(told.step, {})
            step[rank] = told
            while len(self._steps) > _KEPT_STEPS:
                self._steps.popitem(last=False)
            if len(step) == ranks:
                self._steps.pop(told.step, None)
                found = self._compare(told.step, step)
                if found is not None:
                    self._over = True
                    return found
        return None

    def _compare(self, number: int, step: Mapping[int, StepChecksum]) -> Disagreement | None:
        groups: dict[str, dict[int, str]] = {}
        for rank, told in step.items():
            groups.setdefault(told.group, {})[rank] = told.text
        compared = False
        for texts in groups.values():
            if len(texts) < 2:
                continue
            compared = True
            counts = Counter(texts.values()).most_common(2)
            if len(counts) == 1:
                continue
            (common, most), _ = counts
            major = 2 * most > len(texts) and most > 1
            odd = sorted(rank for rank, text in texts.items() if text != common) if major else []
            return Disagreement(
                step=number,
                odd=tuple(odd),
                comparable=self._agreed >= LEAST_AGREED,
                texts=dict(sorted(texts.items())),
            )
        self._agreed += compared
        if len(groups) == 1:
            self._alike[number] = next(iter(step.values())).text
            if len(self._alike) > _KEPT_STEPS:
                self._alike.popitem(last=False)
        return None
