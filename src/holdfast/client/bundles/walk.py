"""Find the paths of a folder that are sent: in a git checkout the paths that git would name, else
all paths that no rule leaves out."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.client.bundles.rules import GIT_RULES, OWN_RULES, IgnoreRules, PathLeftOut
from holdfast.core.bundles.code import CodeRef
from holdfast.errors import ValidationError

_GIT = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotepath=false")


class Found(msgspec.Struct, frozen=True, gc=False):
    """A path that is sent, and its status."""

    path: bytes
    status: os.stat_result


class Walk(msgspec.Struct, frozen=True):
    """The findings of a walk through a folder. found: files, links and folders, sorted. left_out:
    paths that are not sent, folders as a whole; of a git checkout only those that `--list` asks
    for. checkout: commit, branch and whether there are changes; None outside of git."""

    root: bytes
    found: list[Found]
    left_out: list[PathLeftOut]
    checkout: CodeRef | None = None

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
        ValidationError: the path is no folder, or cannot be read.
    """
    root = os.fsencode(os.path.abspath(os.path.expanduser(folder)))
    if not os.path.isdir(root):
        raise ValidationError(f"--workdir {folder}: there is no such folder", field="workdir")
    looked = _start_status(root)
    listed = _list_git(root) or None  # a folder that git ignores goes by its own rules
    left_out = list[PathLeftOut]()
    if listed is None:
        rules = IgnoreRules(root, (GIT_RULES, OWN_RULES))
        paths = _walk_plain(root, b"", rules, left_out)
    else:
        rules = IgnoreRules(root, (OWN_RULES,))
        paths = _choose(listed, rules, left_out)
    found = _stat_all(root, paths, left_out)
    if explain and listed is not None:
        left_out += _explain_git(root)
    checkout = _read_status(looked) if listed is not None else None
    return Walk(root, found, sorted(left_out, key=lambda one: one.path), checkout)


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
    root: bytes, below: bytes, rules: IgnoreRules, left_out: list[PathLeftOut]
) -> Iterator[bytes]:
    """Yield all paths below a folder that no rule leaves out; a folder comes before the paths in
    it."""
    try:
        entries = sorted(
            os.scandir(os.path.join(root, below) if below else root), key=lambda e: e.name
        )
    except OSError as error:
        left_out.append(PathLeftOut(below or b".", f"it cannot be read: {error.strerror}"))
        return
    for entry in entries:
        path = below + b"/" + entry.name if below else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        why = rules.find_reason(path, is_folder=is_folder)
        if why is not None:
            left_out.append(PathLeftOut(path + b"/" if is_folder else path, why))
            continue
        yield path
        if is_folder:
            yield from _walk_plain(root, path, rules, left_out)


def _stat_all(root: bytes, paths: Iterable[bytes], left_out: list[PathLeftOut]) -> list[Found]:
    """Return the status of each path and of the folders above it, sorted by path."""
    statuses: dict[bytes, os.stat_result] = {}
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in paths:
            try:
                status = os.stat(path, dir_fd=top, follow_symlinks=False)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):  # git names what was deleted, too
                    left_out.append(PathLeftOut(path, f"it cannot be read: {error.strerror}"))
                continue
            mode = status.st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
                left_out.append(PathLeftOut(path, "it is no file, link or folder"))
                continue
            statuses[path] = status
            above = path.rpartition(b"/")[0]
            while above and above not in statuses:
                statuses[above] = os.stat(above, dir_fd=top, follow_symlinks=False)
                above = above.rpartition(b"/")[0]
    finally:
        os.close(top)
    return [Found(path, statuses[path]) for path in sorted(statuses)]


# ---- git


def _list_git(root: bytes) -> list[bytes] | None:
    """Return the paths that git names below a folder, also of checkouts inside of it; None where
    the folder is no checkout, or git is not installed."""
    done = _run_git(root, "ls-files", "-z", "-c", "-o", "--exclude-standard")
    if done is None:
        return None
    paths = list[bytes]()
    for path in dict.fromkeys(done.split(b"\0")):
        if not path:
            continue
        inner = path.rstrip(b"/")
        whole = os.path.join(root, inner)
        if path != inner or (os.path.isdir(whole) and not os.path.islink(whole)):
            paths.append(inner)  # a submodule, or a checkout of its own
            below = _list_git(whole) if os.path.exists(os.path.join(whole, b".git")) else None
            paths += [inner + b"/" + name for name in below or ()]
        else:
            paths.append(path)
    return paths


def _start_status(root: bytes) -> subprocess.Popen[bytes] | None:
    """Begin to ask git for the state of a checkout, which takes as long as the walk."""
    words = ("status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--", ".")
    try:
        return subprocess.Popen(
            (*_GIT, "--no-optional-locks", *words), cwd=root, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None


def _read_status(looked: subprocess.Popen[bytes] | None) -> CodeRef:
    commit, branch, dirty = "", "", False
    if looked is not None:
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


def _run_git(root: bytes, *words: str, given: bytes | None = None) -> bytes | None:
    try:
        done = subprocess.run(
            (*_GIT, *words), cwd=root, input=given, stdin=subprocess.DEVNULL if given is None else None,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _explain_git(root: bytes) -> Iterator[PathLeftOut]:
    """Yield the paths that git ignores, folders as a whole, with the line of the rule that ignores
    them."""
    ignored = _run_git(root, "ls-files", "-z", "-o", "-i", "--exclude-standard", "--directory")
    if not ignored:
        return
    said = _run_git(root, "check-ignore", "-z", "-v", "--no-index", "--stdin", given=ignored) or b""
    words = said.split(b"\0")
    reasons = {
        words[n + 3]: f"{os.fsdecode(words[n])} says {os.fsdecode(words[n + 2])}"
        for n in range(0, len(words) - 3, 4)
    }
    for path in ignored.split(b"\0"):
        if path:
            yield PathLeftOut(path, reasons.get(path, "git ignores it"))
