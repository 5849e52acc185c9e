"""Find the paths of a folder that are sent: in a git checkout the paths that git would name, else
all paths that no rule leaves out."""

from __future__ import annotations

import os
import stat
import sys
import unicodedata
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.client.bundles.checkout import (
    explain_ignored,
    list_checkout,
    read_status,
    start_status,
)
from holdfast.client.bundles.rules import GIT_RULES, OWN_RULES, IgnoreRules, PathLeftOut
from holdfast.core.bundles.code import CodeRef
from holdfast.core.bundles.manifest import show_path
from holdfast.errors import ValidationError

_NO_FILE = "it is no file, link or folder"
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = range(100, 1024)


class Found(msgspec.Struct, frozen=True, gc=False):
    """A path that is sent, and its status."""

    path: bytes
    status: os.stat_result


class Walk(msgspec.Struct, frozen=True):
    """The findings of a walk through a folder. found: files, links and folders, sorted. left_out:
    paths that are not sent, folders as a whole; of a git checkout only those that `--list` asks
    for. checkout: commit, branch and whether there are changes; None outside of git. unreadable:
    paths that should be sent and cannot be read, with the reason. hints: sentences on what goes
    otherwise than a person may think."""

    root: bytes
    found: list[Found]
    left_out: list[PathLeftOut]
    checkout: CodeRef | None = None
    unreadable: list[PathLeftOut] = []
    hints: list[str] = []

    @property
    def size(self) -> int:
        """Return the sum of the bytes of all files."""
        return sum(f.status.st_size for f in self.found if stat.S_ISREG(f.status.st_mode))

    @property
    def files(self) -> int:
        """Return the number of files."""
        return sum(stat.S_ISREG(f.status.st_mode) for f in self.found)

    def list_largest(self, count: int = 5) -> list[tuple[bytes, int]]:
        """Return the folders of the first level with the most bytes, largest first."""
        files = [f for f in self.found if stat.S_ISREG(f.status.st_mode)]
        return list_largest(((f.path, f.status.st_size) for f in files), count)


def list_largest(files: Iterable[tuple[bytes, int]], count: int = 5) -> list[tuple[bytes, int]]:
    """Return the folders of the first level with the most bytes, largest first. files: each path with
    its bytes."""
    sizes: dict[bytes, int] = {}
    for path, size in files:
        top = path.partition(b"/")[0] + b"/" if b"/" in path else b"./"
        sizes[top] = sizes.get(top, 0) + size
    return sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))[:count]


def walk(folder: str, *, explain: bool = False) -> Walk:
    """Walk through a folder and return its findings. explain: also find the paths that git leaves
    out, and why.

    Raises:
        ValidationError: the path is no folder, or git refuses the checkout, so that the files that
            it names are not known.
    """
    root = os.fsencode(os.path.abspath(os.path.expanduser(folder)))
    if not os.path.isdir(root):
        raise ValidationError(f"--workdir {folder}: there is no such folder", field="workdir")
    seen = list_checkout(root)
    left_out, unreadable = list[PathLeftOut](), list[PathLeftOut]()
    if seen is None or not seen.paths:  # a folder that git ignores goes by its own rules
        rules = IgnoreRules(root, (GIT_RULES, OWN_RULES))
        paths = _walk_plain(root, b"", rules, left_out, unreadable)
        found = _stat_all(root, paths, left_out, unreadable)
        hints = [] if seen is None else seen.hints
        return Walk(root, found, _sort(left_out), None, _sort(unreadable), hints)
    looked = start_status(root)
    try:
        rules = IgnoreRules(root, (OWN_RULES,))
        found = _stat_all(root, _choose(seen.paths, rules, left_out), left_out, unreadable)
    finally:
        checkout = read_status(looked)
    for one in seen.unreadable:
        why = rules.find_reason(one.path, is_folder=True)
        (unreadable if why is None else left_out).append(
            one if why is None else PathLeftOut(one.path + b"/", why)
        )
    ignored = list(explain_ignored(root)) if explain or rules.negated else []
    hints = [*seen.hints, *rules.list_idle(one.path for one in ignored)]
    hints += _find_pointers(root, found)
    if explain:
        left_out += ignored
        left_out += _explain_rest(root, found, [*left_out, *unreadable])
    return Walk(root, found, _sort(left_out), checkout, _sort(unreadable), hints)


def _sort(paths: list[PathLeftOut]) -> list[PathLeftOut]:
    return sorted(paths, key=lambda one: one.path)


def _choose(
    listed: Iterable[bytes], rules: IgnoreRules, left_out: list[PathLeftOut]
) -> Iterator[bytes]:
    for path in listed:
        why = rules.find_reason(path)
        if why is None:
            yield path
        else:
            left_out.append(PathLeftOut(path, why))


def _walk_plain(
    root: bytes,
    below: bytes,
    rules: IgnoreRules,
    left_out: list[PathLeftOut],
    unreadable: list[PathLeftOut],
) -> Iterator[bytes]:
    """Yield all paths below a folder that no rule leaves out; a folder comes before the paths in
    it."""
    try:
        entries = sorted(
            os.scandir(os.path.join(root, below) if below else root), key=lambda e: e.name
        )
    except OSError as error:
        unreadable.append(PathLeftOut(below or b".", str(error.strerror)))
        return
    for entry in entries:
        name = _compose(entry.name) if sys.platform == "darwin" else entry.name
        path = below + b"/" + name if below else name
        is_folder = entry.is_dir(follow_symlinks=False)
        why = rules.find_reason(path, is_folder=is_folder)
        if why is not None:
            left_out.append(PathLeftOut(path + b"/" if is_folder else path, why))
            continue
        yield path
        if is_folder:
            yield from _walk_plain(root, path, rules, left_out, unreadable)


def _compose(name: bytes) -> bytes:
    """Return a name of a Mac in composed form, as git and programs write it: macOS finds a file by
    either form, and Linux only by the one that it was sent with."""
    return os.fsencode(unicodedata.normalize("NFC", os.fsdecode(name)))


def _stat_all(
    root: bytes, paths: Iterable[bytes], left_out: list[PathLeftOut], unreadable: list[PathLeftOut]
) -> list[Found]:
    """Return the status of each path and of the folders above it, sorted by path."""
    statuses: dict[bytes, os.stat_result] = {}
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in paths:
            try:
                status = os.stat(path, dir_fd=top, follow_symlinks=False)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):  # git names what was deleted, too
                    unreadable.append(PathLeftOut(path, str(error.strerror)))
                continue
            mode = status.st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
                left_out.append(PathLeftOut(path, _NO_FILE))
                continue
            statuses[path] = status
            above = path.rpartition(b"/")[0]
            while above and above not in statuses:
                statuses[above] = os.stat(above, dir_fd=top, follow_symlinks=False)
                above = above.rpartition(b"/")[0]
    finally:
        os.close(top)
    return [Found(path, statuses[path]) for path in sorted(statuses)]


def _find_pointers(root: bytes, found: Iterable[Found]) -> Iterator[str]:
    """Yield a sentence where files of a checkout are pointers of Git LFS, because their bytes were
    not fetched."""
    pointers = [
        one.path
        for one in found
        if stat.S_ISREG(one.status.st_mode)
        and one.status.st_size in _POINTER_BYTES
        and _is_pointer(os.path.join(root, one.path))
    ]
    if pointers:
        yield (
            f"{len(pointers)} files are pointers of Git LFS and go without their bytes, as "
            f"{show_path(pointers[0])}; `git lfs pull` fetches them"
        )


def _is_pointer(path: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:  # the sending says so
        return False


def _explain_rest(
    root: bytes, found: Iterable[Found], told: Iterable[PathLeftOut]
) -> Iterator[PathLeftOut]:
    """Yield the paths of a checkout that neither go nor were told: git names no empty folders,
    pipes, sockets and devices."""
    known, left = {one.path for one in found}, {one.path.rstrip(b"/") for one in told}
    folders = [b""]
    while folders:
        below = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(root, below) if below else root))
        except OSError:  # it was told
            continue
        if below and not entries:
            yield PathLeftOut(below + b"/", "git names no empty folders")
        for entry in entries:
            path = below + b"/" + entry.name if below else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == b".git" or path in left:
                continue
            if is_folder:
                folders.append(path)
            elif path not in known:
                yield PathLeftOut(path, _NO_FILE)
