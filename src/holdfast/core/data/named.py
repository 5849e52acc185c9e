"""Read the words of `--cache` and `--mount`: a name, and a path inside a container. Pure.

CACHE-1  A cache belongs to one project: its key is the project and the name, and a host keeps a
         folder for each key.
MOUNT-1  A mount is a folder that an agent's own configuration lists. A host that lists `data`
         carries the label `mount/data=yes`, and a job that mounts `data` asks for that label, so
         that admission, pools and `why` treat it as they treat any label.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.errors import ValidationError

MAX_FOLDERS = 32
MAX_WORD_CHARS = 4096
MOUNT = "mount/"
Kind = Literal["cache", "mount"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class NamedFolder(msgspec.Struct, frozen=True):
    """A cache or a mount that a job asks for. inside: the folder's path in the job's container; ""
    for the path that the folder has on the host."""

    name: str
    inside: str = ""


def read_folder(kind: Kind, word: str) -> NamedFolder:
    """Read the word of a cache or mount: `NAME` or `NAME:/path`. Raises ValidationError."""
    name, colon, inside = word.partition(":")
    field = f"{kind}s"
    if not _NAME.fullmatch(name):
        raise ValidationError(
            f"{kind} {word!r} does not begin with a name of letters, digits and ._-; in a plain job "
            f"the place of {kind} NAME stands in HOLDFAST_{kind.upper()}_NAME, and in a container "
            "NAME:/path puts it at that path",
            field=field,
        )
    if colon and (not inside.startswith("/") or ":" in inside or ".." in inside.split("/")):
        raise ValidationError(
            f"{kind} {word!r} is not written NAME:/path/inside, with an absolute path without `..`",
            field=field,
        )
    return NamedFolder(name, inside.rstrip("/") or inside)


def name_variable(kind: Kind, name: str) -> str:
    """Return the variable in which a task finds the folder: HOLDFAST_CACHE_HF_HUB for hf-hub."""
    return f"HOLDFAST_{kind.upper()}_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"


def check_folders(kind: Kind, words: Sequence[str], *, boxed: bool) -> None:
    """Check the words of a job's caches or mounts. boxed: the job runs in a container. Raises
    ValidationError."""
    seen: dict[str, str] = {}
    for word in words:
        folder = read_folder(kind, word)
        variable = name_variable(kind, folder.name)
        if folder.inside and not boxed:
            raise ValidationError(
                f"{kind} {word!r}: a path of its own is for a job in a container (--image); in a "
                f"plain job its place stands in {variable}",
                field=f"{kind}s",
            )
        if variable in seen:
            raise ValidationError(
                f"{kind}s {seen[variable]!r} and {word!r} would both stand in {variable}; give one "
                "of them another name",
                field=f"{kind}s",
            )
        seen[variable] = word


def list_mount_labels(mounts: Iterable[str]) -> dict[str, str]:
    """Return the labels that a host needs for these mounts (MOUNT-1)."""
    return {MOUNT + read_folder("mount", word).name: "yes" for word in mounts}


def list_cache_keys(project: str, words: Iterable[str]) -> frozenset[str]:
    """Return the keys of a job's caches, as hosts report them (CACHE-1)."""
    return frozenset(f"{project}/{word.partition(':')[0]}" for word in words)


def find_missing_mounts(wanted: Mapping[str, str], had: Mapping[str, str]) -> list[str]:
    """Return the names of the mounts that a job asks for by the labels `wanted`, and that a host
    with the labels `had` lacks."""
    names = (name for name in wanted if name.startswith(MOUNT) and name not in had)
    return sorted(name.removeprefix(MOUNT) for name in names)
