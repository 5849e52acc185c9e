"""Changes to settings, queues and projects: the check, the merge, and the events."""

from collections.abc import Mapping, Sequence
from typing import Literal

from holdfast.core.settings.resolve import SETTINGS, Value, check_layer
from holdfast.core.settings.table import begin_queue
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.rows import NewEvent


def check_changes(
    changes: Mapping[str, Value],
    unset: Sequence[str],
    scope: Literal["queue", "project", "cluster"],
) -> dict[str, Value]:
    """Return the checked changes; raise ValidationError for an unknown name in `unset` too."""
    for name in unset:
        if name not in SETTINGS:
            none = f"there is no setting {name!r}; `holdfast config` lists them"
            raise ValidationError(none, field=name)
    return check_layer(changes, scope)


def merge_layer(
    layer: Mapping[str, Value], changes: Mapping[str, Value], unset: Sequence[str]
) -> dict[str, Value]:
    """Return `layer` with the changes, and without the names in `unset`, even if they are
    changed."""
    return {name: value for name, value in {**layer, **changes}.items() if name not in unset}


def fill_queue(name: str, changes: Mapping[str, Value], *, created: bool) -> dict[str, Value]:
    """Return the changes; for a new queue, on top of the settings that its name brings."""
    return {**begin_queue(name), **changes} if created else dict(changes)


def settings_event(changes: Mapping[str, Value], unset: Sequence[str]) -> NewEvent:
    """Return the event that reports changed cluster settings."""
    names = ", ".join(sorted({*changes, *unset}))
    text, data = f"cluster settings changed: {names}", {"set": dict(changes), "unset": list(unset)}
    return NewEvent(kind="settings.changed", message=text, data=data)


def rules_event() -> NewEvent:
    """Return the event that reports changed rules of classification."""
    text = "the rules of classification changed"
    return NewEvent(kind="settings.changed", message=text, data={"rules": True})


def queue_event(
    name: str, changes: Mapping[str, Value], unset: Sequence[str], *, created: bool
) -> NewEvent:
    """Return the event that reports a queue made or changed."""
    text = f"queue {name} {_say_change(changes, unset, created)}"
    data = {"set": dict(changes), "unset": list(unset), "created": created}
    return NewEvent(kind="queue.changed", queue=name, message=text, data=data)


def _say_change(changes: Mapping[str, Value], unset: Sequence[str], created: bool) -> str:
    return "created" if created else f"changed: {', '.join(sorted({*changes, *unset}))}"


def deleted_event(name: str) -> NewEvent:
    """Return the event that reports a deleted queue."""
    text, data = f"queue {name} deleted", {"deleted": True}
    return NewEvent(kind="queue.changed", queue=name, message=text, data=data)


def paused_event(name: str, reason: str, hard: bool) -> NewEvent:
    """Return the event that reports a paused queue."""
    text, data = pause_reason(name, reason), {"hard": hard}
    return NewEvent(kind="queue.paused", queue=name, message=text, data=data)


def resumed_event(name: str) -> NewEvent:
    """Return the event that reports a resumed queue."""
    return NewEvent(kind="queue.resumed", queue=name, message=f"queue {name} resumed")


def pause_reason(name: str, reason: str) -> str:
    """Return the sentence that tells of a pause."""
    return f"queue {name} was paused" + (f": {reason}" if reason else "")


def no_queue(name: str) -> NotFound:
    """Return the error for an unknown queue."""
    return NotFound(f"there is no queue {name!r}; `holdfast queues` lists them")


def queue_in_use(name: str) -> Conflict:
    """Return the error for a queue with unfinished jobs."""
    text = f"queue {name} still has unfinished jobs; cancel them or let them end, then delete it"
    return Conflict(text, code="queue_in_use")


def project_event(
    name: str, changes: Mapping[str, Value], unset: Sequence[str], *, created: bool
) -> NewEvent:
    """Return the event that reports a project whose own settings changed."""
    text = f"project {name} {_say_change(changes, unset, created)}"
    data = {"set": dict(changes), "unset": list(unset), "created": created}
    return NewEvent(kind="project.changed", project=name, message=text, data=data)


def forgotten_event(name: str) -> NewEvent:
    """Return the event that reports a project whose own settings were dropped."""
    text, data = f"project {name} deleted", {"deleted": True}
    return NewEvent(kind="project.changed", project=name, message=text, data=data)


def no_project(name: str) -> NotFound:
    """Return the error for a project without settings of its own."""
    none = f"project {name!r} has no settings of its own"
    return NotFound(f"{none}; `holdfast projects` lists those that have")


def project_in_use(name: str) -> Conflict:
    """Return the error for a project with unfinished jobs."""
    text = f"project {name} still has unfinished jobs; cancel them or let them end, then delete it"
    return Conflict(text, code="project_in_use")
