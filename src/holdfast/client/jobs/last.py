"""The jobs that were submitted last from here, one for each controller; `@last` names them."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

LAST = "@last"
# The file of last jobs forgets the controller that was used longest ago.
MAX_CONTROLLERS = 32


def remember_last(url: str, job_id: str) -> None:
    """Keep the id of a job or an array for `@last`. A file that cannot be written costs no more
    than that."""
    path = _find_file()
    if path is None:
        return
    known = _read_file(path)
    known.pop(url, None)
    known[url] = job_id
    kept = dict(list(known.items())[-MAX_CONTROLLERS:])
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(kept, file)
        new.replace(path)


def recall_last(url: str) -> str | None:
    """Return the id of the last job or array that was submitted from here to this controller."""
    path = _find_file()
    return _read_file(path).get(url) if path is not None else None


def name_last(url: str, word: str) -> str:
    """Return `@last[7]` with the last array's id in place of `@last`, and any other word
    unchanged."""
    last = recall_last(url) if word.startswith(f"{LAST}[") else None
    return word if last is None else last + word.removeprefix(LAST)


def _find_file() -> Path | None:
    state = os.environ.get("XDG_STATE_HOME")
    home = os.environ.get("HOME")
    if not state and not home:
        return None
    return Path(state or f"{home}/.local/state", "holdfast", "last-jobs.json")


def _read_file(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(url): job_id for url, job_id in found.items() if isinstance(job_id, str)}
