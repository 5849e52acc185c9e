"""Ask git about a checkout: the paths that it names, those that it ignores, and its state."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator

import msgspec

from holdfast.client.bundles.rules import PathLeftOut
from holdfast.core.bundles.code import CodeRef
from holdfast.core.bundles.manifest import show_path
from holdfast.errors import ValidationError

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false")
_ELSEWHERE = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE",
)  # fmt: skip
"""Variables that lead git from a folder's own checkout to another one, as in git's hooks."""
_UNREADABLE = re.compile(rb"warning: could not open directory '(.*)': (.*)")


class Checkout(msgspec.Struct):
    """The findings of git about a checkout. paths: what it names. unreadable: folders that it could
    not read, with the reason. hints: sentences on what is not there."""

    paths: list[bytes] = []
    unreadable: list[PathLeftOut] = []
    hints: list[str] = []


def list_checkout(root: bytes) -> Checkout | None:
    """Return the paths that git names below a folder, also of checkouts inside of it; None where
    the folder is in no checkout.

    Raises:
        ValidationError: the folder is in a checkout, and git refuses it, because other files would
            go in silence by other rules.
    """
    if not _is_inside(root):
        if where := os.environ.get("GIT_DIR"):
            raise ValidationError(
                f"GIT_DIR names {where}, but {os.fsdecode(root)} is in no checkout of its own, so "
                "which files should go is not known; unset GIT_DIR",
                field="workdir",
            )
        return None
    found = Checkout()
    _list_into(found, root, b"")
    return found


def _list_into(found: Checkout, root: bytes, below: bytes) -> None:
    """Add what git names in the checkout at `below`, and in checkouts inside of it."""
    folder = os.path.join(root, below) if below else root
    words = ("ls-files", "-z", "-c", "-o", "--exclude-standard")
    try:
        done = _run_git(folder, *words)
    except OSError:
        found.hints.append(
            f"{os.fsdecode(folder)} is a git checkout, and there is no git here to name its files, "
            "so they go by the rules of .gitignore alone"
        )
        return
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip() or f"it ended with {done.returncode}"
        raise ValidationError(
            f"git refuses the checkout at {os.fsdecode(folder)}, so which files should go is not "
            f"known, and nothing was sent. git says: {said}",
            field="workdir",
            code="checkout_refused",
        )
    inside = below + b"/" if below else b""
    for line in done.stderr.splitlines():
        if said_so := _UNREADABLE.fullmatch(line):
            path, why = said_so[1].rstrip(b"/"), said_so[2].decode(errors="replace")
            found.unreadable.append(PathLeftOut(inside + path, why))
    for path in dict.fromkeys(filter(None, done.stdout.split(b"\0"))):
        inner = path.rstrip(b"/")
        whole = os.path.join(folder, inner)
        found.paths.append(inside + inner)
        if path != inner or (os.path.isdir(whole) and not os.path.islink(whole)):
            if os.path.exists(os.path.join(whole, b".git")):
                _list_into(found, root, inside + inner)
            elif path == inner:
                found.hints.append(
                    f"the submodule {show_path(inside + inner)} goes empty; `git submodule update "
                    "--init` fetches it"
                )


def _is_inside(root: bytes) -> bool:
    """Return whether a folder, or one above it on the same file system, has a `.git`, as git looks
    for one."""
    folder, device = os.path.realpath(root), os.stat(root).st_dev
    while not os.path.lexists(os.path.join(folder, b".git")):
        above = os.path.dirname(folder)
        if above == folder or os.stat(above).st_dev != device:
            return False
        folder = above
    return True


def start_status(root: bytes) -> subprocess.Popen[bytes]:
    """Begin to ask git for the state of a checkout, which takes as long as the walk."""
    words = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--", ".")
    return subprocess.Popen(
        (*_GIT, "--no-optional-locks", *words), cwd=root, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environ(),
    )  # fmt: skip


def read_status(looked: subprocess.Popen[bytes]) -> CodeRef:
    """Return the commit, the branch and whether there are changes, as git says."""
    commit, branch, dirty = "", "", False
    text, _ = looked.communicate()
    for line in text.split(b"\0"):
        words = line.split(b" ", 2)
        if words[0] != b"#":
            dirty = dirty or bool(line)
        elif words[1] == b"branch.oid" and words[2] != b"(initial)":
            commit = words[2].decode()
        elif words[1] == b"branch.head" and words[2] != b"(detached)":
            branch = words[2].decode(errors="replace")[:256]
    return CodeRef(commit=commit, branch=branch, dirty=dirty)


def explain_ignored(root: bytes) -> Iterator[PathLeftOut]:
    """Yield the paths that git ignores, folders as a whole, with the line of the rule that ignores
    them."""
    words = ("ls-files", "-z", "-o", "-i", "--exclude-standard", "--directory")
    ignored = _run_git(root, *words).stdout
    if not ignored:
        return
    said = _run_git(root, "check-ignore", "-z", "-v", "--no-index", "--stdin", given=ignored)
    words_said = said.stdout.split(b"\0")
    reasons = {
        words_said[n + 3]: f"{os.fsdecode(words_said[n])} says {os.fsdecode(words_said[n + 2])}"
        for n in range(0, len(words_said) - 3, 4)
    }
    for path in filter(None, ignored.split(b"\0")):
        yield PathLeftOut(path, reasons.get(path, "git ignores it"))


def _environ() -> dict[str, str]:
    """Return the environment of git, in which it looks at a folder's own checkout and says in
    English what it cannot do."""
    own = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    return {**own, "LC_ALL": "C"}


def _run_git(
    root: bytes, *words: str, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raises OSError where git is not installed."""
    return subprocess.run(
        (*_GIT, *words), cwd=root, input=given, stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True, check=False, env=_environ(),
    )  # fmt: skip
