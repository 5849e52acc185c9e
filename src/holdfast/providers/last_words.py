"""Explains the end of an agent to a person, by the last line of its log."""

import msgspec

_MAX_CHARACTERS = 300


class _LogLine(msgspec.Struct):
    message: str


def tell_end(line: str) -> str:
    """Return why a machine is gone whose end was not ordered. line: the last line of its agent's
    log, text or JSON, which may be cut off."""
    try:
        said = msgspec.json.decode(line.encode(errors="replace"), type=_LogLine).message
    except msgspec.MsgspecError:
        said = line
    words = " ".join(said.split())[-_MAX_CHARACTERS:]
    return (
        f"its process ended; its log ends with: {words}"
        if words
        else ("its process ended; its log is empty")
    )
