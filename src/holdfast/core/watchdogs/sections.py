"""Named sections of a job, in which it expects longer silence, as its datagrams announce them."""

from __future__ import annotations

import msgspec

MAX_DEPTH = 32
MAX_LEARNED = 256
IDLE_SECTION = "no processes"
"""The section of a host manager that has nothing to run (IDLE-1)."""


class OpenSection(msgspec.Struct, frozen=True):
    """An open section. timeout_seconds: as the job set it; None: earlier passes decide."""

    name: str
    entered_at: float
    timeout_seconds: float | None = None


class Sections(msgspec.Struct, frozen=True):
    """The open sections, innermost last, and each name's longest pass so far in seconds.

    Datagrams may be lost, so each is read as the whole truth: one that names an outer section
    closes the inner ones, one without a section closes all. A length is learned only from a
    datagram that closes the section by name.
    """

    open: tuple[OpenSection, ...] = ()
    learned: dict[str, float] = {}

    def enter(self, now: float, name: str, timeout: float | None) -> Sections:
        """Apply a datagram that was sent inside the section `name`: open that section, or come back
        to it from a section inside."""
        for depth, section in enumerate(self.open):
            if section.name == name:
                again = msgspec.structs.replace(section, timeout_seconds=timeout)
                return Sections((*self.open[:depth], again), self.learned)
        inside = (*self.open[: MAX_DEPTH - 1], OpenSection(name, now, timeout))
        return Sections(inside, self.learned)

    def leave(self, now: float, name: str) -> Sections:
        """Close `name` and learn the length of its pass; a section whose entry was lost is
        ignored."""
        for depth, section in enumerate(self.open):
            if section.name == name:
                longest = max(self.learned.get(name, 0.0), now - section.entered_at)
                learned = {k: v for k, v in self.learned.items() if k != name}
                if len(learned) >= MAX_LEARNED:  # a job that makes up names must not grow the agent
                    learned.pop(next(iter(learned)))
                return Sections(self.open[:depth], {**learned, name: longest})
        return self

    def clear(self) -> Sections:
        """Close all sections, because a datagram came from outside of them."""
        return Sections((), self.learned) if self.open else self

    def contains(self, name: str) -> bool:
        """Return whether `name` is open."""
        return any(section.name == name for section in self.open)

    def timeout(self, factor: float) -> tuple[float, bool] | None:
        """Return the timeout in force and whether the job gave it, or None.

        The innermost section with a timeout decides: an outer one still covers what is inside it.
        """
        for section in reversed(self.open):
            if section.timeout_seconds is not None:
                return section.timeout_seconds, True
            if section.name in self.learned:
                return self.learned[section.name] * factor, False
        return None
