"""The files that a run's nodes wrote, where the run's folder can be read from here."""

import os
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from holdfast.wire.workflows import RunView


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """One file. path: its path below the node's folder."""

    node: str
    path: str
    bytes: int


def list_artifacts(run: "RunView") -> list[Artifact]:
    """Return every file below a run's folder, by node and path; an empty list where the folder
    cannot be read."""
    found = []
    for folder, _, names in os.walk(run.out_dir) if run.out_dir else ():
        for name in names:
            whole = os.path.join(folder, name)
            node, _, path = os.path.relpath(whole, run.out_dir).partition(os.sep)
            if path and os.path.isfile(whole):
                found.append(Artifact(node=node, path=path, bytes=os.path.getsize(whole)))
    return sorted(found, key=lambda item: (item.node, item.path))
