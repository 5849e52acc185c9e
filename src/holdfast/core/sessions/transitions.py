"""The state machine of a person's session in a task: (state, event) → (state, why the edge exists, what
writes it)."""

from enum import StrEnum

from holdfast.core.transitions import Table, Transition


class SessionState(StrEnum):
    """The state of a session."""

    OPENING = "opening"
    RUNNING = "running"
    ENDED = "ended"


class SessionEvent(StrEnum):
    """An event that moves a session on."""

    BEGIN = "begin"
    END = "end"


_to, _S, _SE = Transition, SessionState, SessionEvent
_END = "end_session"
SESSION: Table[SessionState, SessionEvent] = {
    (_S.OPENING, _SE.BEGIN): _to(_S.RUNNING, "its first link is joined", "note_session_begun"),
    (_S.OPENING, _SE.END): _to(_S.ENDED, "it was refused, given up, or too late", _END),
    (_S.RUNNING, _SE.END): _to(
        _S.ENDED, "its program, its attempt or its right to be there ended", _END
    ),
}
