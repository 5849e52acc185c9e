"""Decide which paths of a folder are left out: by one function for every path, and by git's
patterns."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

GIT_RULES, OWN_RULES = b".gitignore", b".holdfastignore"
_VERSIONED = (b".git", b".hg", b".svn")


class PathLeftOut(msgspec.Struct, frozen=True):
    """A path that is not sent, and the reason."""

    path: bytes
    why: str


class _RuleFile:
    """The patterns of one file, which hold for the paths below its folder."""

    def __init__(self, folder: bytes, name: bytes, text: bytes) -> None:
        from pathspec import GitIgnoreSpec  # late, because most folders have no such file

        self._lines = text.decode("utf-8", "surrogateescape").splitlines()
        self._spec = GitIgnoreSpec.from_lines(self._lines)
        self._name = os.fsdecode(os.path.join(folder, name))
        self._skip = len(folder) + 1 if folder else 0

    def judge(self, path: bytes, *, is_folder: bool) -> tuple[bool, str] | None:
        """Return whether a path is left out, and by which line of the file; None where no line
        matches the path."""
        words = os.fsdecode(path[self._skip :]) + ("/" if is_folder else "")
        found = self._spec.check_file(words)
        if found.include is None:
            return None
        line = self._lines[found.index] if found.index is not None else ""
        return found.include, f"{self._name} says {line.strip()}"


class IgnoreRules:
    """The rules of a folder. names: the names of rule files; the files of each name are a set of
    rules by itself. A path is sent if no set leaves it out."""

    def __init__(self, root: bytes, names: Sequence[bytes]) -> None:
        self._root = root
        self._names = names
        self._files: dict[bytes, tuple[tuple[_RuleFile, ...], ...]] = {}
        self._folders: dict[bytes, str | None] = {b"": None}

    def find_reason(self, path: bytes, *, is_folder: bool = False) -> str | None:
        """Return why a path is left out, None if it is sent. All paths in a folder that is left out
        are left out, too."""
        above, _, name = path.rpartition(b"/")
        reason = self._of_folder(above)
        if reason is not None:
            return reason
        if is_folder and name in _VERSIONED:
            return "it is a folder of version control"
        for files in filter(None, self._files_for(above)):
            for rules in reversed(files):
                found = rules.judge(path, is_folder=is_folder)
                if found is not None:
                    if found[0]:
                        return found[1]
                    break
        return None

    def _of_folder(self, folder: bytes) -> str | None:
        if folder not in self._folders:
            self._folders[folder] = self.find_reason(folder, is_folder=True)
        return self._folders[folder]

    def _files_for(self, folder: bytes) -> tuple[tuple[_RuleFile, ...], ...]:
        """Return the rule files that hold in a folder, outermost first, for each set of rules."""
        if folder not in self._files:
            above = (
                self._files_for(folder.rpartition(b"/")[0]) if folder else ((),) * len(self._names)
            )
            self._files[folder] = tuple(
                (*there, *self._read(folder, name))
                for there, name in zip(above, self._names, strict=True)
            )
        return self._files[folder]

    def _read(self, folder: bytes, name: bytes) -> tuple[_RuleFile, ...]:
        try:
            with open(os.path.join(self._root, folder, name), "rb") as file:
                return (_RuleFile(folder, name, file.read()),)
        except OSError:
            return ()
