"""Changes to settings, queues and projects: the check, the merge, and the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from holdfast.core.settings.resolve import SETTINGS, Value, check_layer
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
            raise ValidationError(
                f"there is no setting {name!r}; `holdfast config` lists them", field=name
            )
    return check_layer(changes, scope)


def merge_layer(
    layer: Mapping[str, Value], changes: Mapping[str, Value], unset: Sequence[str]
) -> dict[str, Value]:
    """Return `layer` with the changes made; `unset` wins."""
    return {name: value for name, value in {**layer, **changes}.items() if name not in unset}


def settings_event(changes: Mapping[str, Value], unset: Sequence[str]) -> NewEvent:
    """Return the event of changed cluster settings."""
    names = ", ".join(sorted({*changes, *unset}))
    return NewEvent(
        kind="settings.changed",
        message=f"cluster settings changed: {names}",
        data={"set": dict(changes), "unset": list(unset)},
    )


def rules_event() -> NewEvent:
    """Return the event of changed rules of classification."""
    return NewEvent(
        kind="settings.changed", message="the rules of classification changed", data={"rules": True}
    )


def queue_event(
    name: str, changes: Mapping[str, Value], unset: Sequence[str], *, created: bool
) -> NewEvent:
    """Return the event of a queue made or changed."""
    changed = f"changed: {', '.join(sorted({*changes, *unset}))}"
    text = f"queue {name} {'created' if created else changed}"
    return NewEvent(
        kind="queue.changed",
        queue=name,
        message=text,
        data={"set": dict(changes), "unset": list(unset), "created": created},
    )


def deleted_event(name: str) -> NewEvent:
    """Return the event of a deleted queue."""
    return NewEvent(
        kind="queue.changed", queue=name, message=f"queue {name} deleted", data={"deleted": True}
    )


def paused_event(name: str, reason: str, hard: bool) -> NewEvent:
    """Return the event of a paused queue."""
    return NewEvent(
        kind="queue.paused", queue=name, message=pause_reason(name, reason), data={"hard": hard}
    )


def resumed_event(name: str) -> NewEvent:
    """Return the event of a resumed queue."""
    return NewEvent(kind="queue.resumed", queue=name, message=f"queue {name} resumed")


def pause_reason(name: str, reason: str) -> str:
    """Return the sentence of a pause."""
    return f"queue {name} was paused" + (f": {reason}" if reason else "")


def no_queue(name: str) -> NotFound:
    """The error for a name no queue has."""
    return NotFound(f"there is no queue {name!r}; `holdfast queues` lists them")


def queue_in_use(name: str) -> Conflict:
    """The error for a queue with unfinished jobs."""
    return Conflict(
        f"queue {name} still has unfinished jobs; cancel them or let them end, then delete it",
        code="queue_in_use",
    )


def project_event(
    name: str, changes: Mapping[str, Value], unset: Sequence[str], *, created: bool
) -> NewEvent:
    """Return the event of a project whose own settings changed."""
    changed = f"changed: {', '.join(sorted({*changes, *unset}))}"
    text = f"project {name} {'created' if created else changed}"
    return NewEvent(
        kind="project.changed",
        project=name,
        message=text,
        data={"set": dict(changes), "unset": list(unset), "created": created},
    )


def forgotten_event(name: str) -> NewEvent:
    """Return the event of a project whose own settings were dropped."""
    text, data = f"project {name} deleted", {"deleted": True}
    return NewEvent(kind="project.changed", project=name, message=text, data=data)


def no_project(name: str) -> NotFound:
    """The error for a project without settings of its own."""
    return NotFound(
        f"project {name!r} has no settings of its own; `holdfast projects` lists those that have"
    )


def project_in_use(name: str) -> Conflict:
    """The error for a project with unfinished jobs."""
    return Conflict(
        f"project {name} still has unfinished jobs; cancel them or let them end, then delete it",
        code="project_in_use",
    )
