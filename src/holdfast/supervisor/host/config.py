"""The configuration of a host manager."""

from __future__ import annotations

import msgspec

from holdfast.supervisor.line.keys import ManagerKey


class ManagerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration that a host manager gets at its start.

    url: the supervisor's address, tcp://address:port. key: the run's keys; None only where the
    supervisor speaks plain TCP. key_file: the file that holds the key, read again until the
    supervisor has answered. name: the machine's name as the script sees it. address: this machine's
    address as others reach it; None to find it out. patience_seconds: how long to look for the
    supervisor at first. usage_seconds: the time between two samples of usage; 0 takes none.
    log_file: the file for JSON lines of every start, end and sample; None for standard error.

    term_grace_seconds: for a manager whose processes receive the same TERM as it does, as at a
    drain of Holdfast: the time that they have to end, without a second TERM. None where only the
    manager receives the TERM: the processes get a TERM of their own, and the supervisor's grace.
    search_note_seconds: the time without an answer after which the manager logs that it still looks
    for a supervisor; later notes come ever more rarely.
    """

    url: str
    key: ManagerKey | None = None
    key_file: str | None = None
    name: str | None = None
    address: str | None = None
    labels: dict[str, str] = {}
    gpus: int | None = None
    patience_seconds: float = 600.0
    usage_seconds: float = 30.0
    log_file: str | None = None
    term_grace_seconds: float | None = None
    search_note_seconds: float = 30.0
