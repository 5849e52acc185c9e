"""Decide which paths of a folder are left out: by one function for every path, and by git's
patterns, which match bytes as git's own do."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

GIT_RULES, OWN_RULES = b".gitignore", b".holdfastignore"
_VERSIONED = (b".git", b".hg", b".svn")


class PathLeftOut(msgspec.Struct, frozen=True):
    """A path that is not sent, and the reason."""

    path: bytes
    why: str


class _RuleFile:
    """The patterns of one file, which hold for the paths below its folder."""

    def __init__(self, folder: bytes, name: bytes, text: bytes) -> None:
        self._lines = text.splitlines()
        self._name = os.fsdecode(os.path.join(folder, name))
        try:
            self._spec = self._compile(self._lines)
        except Exception:  # each of the libraries has its own
            raise self._find_bad_line() from None
        self._skip = len(folder) + 1 if folder else 0

    def _compile(self, lines: Sequence[bytes]) -> GitIgnoreSpec:
        from pathspec import GitIgnoreSpec  # late, because most folders have no such file

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of `re`, about brackets in brackets
            spec = GitIgnoreSpec.from_lines(map(_as_text, lines))
        spec.check_file("x")  # some patterns are read only now
        return spec

    def _find_bad_line(self) -> ValidationError:
        for number, line in enumerate(self._lines, 1):
            try:
                self._compile([line])
            except Exception:
                said = os.fsdecode(line.strip())
                return ValidationError(
                    f"{self._name}, line {number}: {said!r} is no pattern", field="workdir"
                )
        return ValidationError(f"{self._name} cannot be read as patterns", field="workdir")

    def judge(self, path: bytes, *, is_folder: bool) -> tuple[bool, str] | None:
        """Return whether a path is left out, and by which line of the file; None where no line
        matches the path."""
        words = _as_text(path[self._skip :]) + ("/" if is_folder else "")
        found = self._spec.check_file(words)
        if found.include is None:
            return None
        line = self._lines[found.index] if found.index is not None else b""
        return found.include, f"{self._name} says {os.fsdecode(line.strip())}"

    @property
    def negated(self) -> list[str]:
        """Return the lines that begin with `!`."""
        return [os.fsdecode(line.strip()) for line in self._lines if line.startswith(b"!")]

    def brings_back(self, path: bytes) -> str:
        """Return the line with `!` that matches a path, or one below it; "" where none does."""
        found = self.judge(path.rstrip(b"/"), is_folder=path.endswith(b"/"))
        if found is not None and not found[0]:
            return found[1]
        inside = os.fsdecode(path[self._skip :])
        lines = (line for line in self.negated if line[1:].lstrip("/").startswith(inside))
        return next((f"{self._name} says {line}" for line in lines if path.endswith(b"/")), "")


def _as_text(path: bytes) -> str:
    """Return a character for each byte, because a name need not be UTF-8."""
    return path.decode("latin-1")


class IgnoreRules:
    """The rules of a folder. names: the names of rule files; the files of each name are a set of
    rules by itself. A path is sent if no set leaves it out."""

    def __init__(self, root: bytes, names: Sequence[bytes]) -> None:
        self._root = root
        self._names = names
        self._files: dict[bytes, tuple[tuple[_RuleFile, ...], ...]] = {}
        self._folders: dict[bytes, tuple[str | None, list[tuple[_RuleFile, ...]]]] = {}

    def find_reason(self, path: bytes, *, is_folder: bool = False) -> str | None:
        """Return why a path is left out, None if it is sent. All paths in a folder that is left out
        are left out, too."""
        above, _, name = path.rpartition(b"/")
        reason, sets = self._folders.get(above) or self._look_into(above)
        if reason is not None:
            return reason
        if is_folder and name in _VERSIONED:
            return "it is a folder of version control"
        for files in sets:
            for rules in reversed(files):
                found = rules.judge(path, is_folder=is_folder)
                if found is not None:
                    if found[0]:
                        return found[1]
                    break
        return None

    @property
    def negated(self) -> bool:
        """Return whether a rule file that was read has a line with `!`."""
        return any(one.negated for one in self._list_files())

    def list_idle(self, ignored: Iterable[bytes]) -> list[str]:
        """Return a sentence for each line with `!` that names what git leaves out, because no line
        brings that back. ignored: the paths that git leaves out."""
        paths = list(ignored)
        idle = (one.brings_back(path) for one in self._list_files() for path in paths)
        return [
            f"{said}, but git leaves that out, and no rule brings it back; `git add -f` takes it along"
            for said in dict.fromkeys(filter(None, idle))
        ]

    def _list_files(self) -> set[_RuleFile]:
        return {one for sets in self._files.values() for files in sets for one in files}

    def _look_into(self, folder: bytes) -> tuple[str | None, list[tuple[_RuleFile, ...]]]:
        """Return why a folder is left out, None if it is sent; and the sets of rules for its paths."""
        reason = self.find_reason(folder, is_folder=True) if folder else None
        sets = [] if reason else [files for files in self._files_for(folder) if files]
        found = self._folders[folder] = reason, sets
        return found

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
        path = os.path.join(self._root, folder, name)
        try:
            with open(path, "rb") as file:
                return (_RuleFile(folder, name, file.read()),)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return ()
        except OSError as error:
            if not os.path.lexists(path):
                return ()  # nothing below this folder can be read, and the walk says so
            raise ValidationError(
                f"{os.fsdecode(path)} cannot be read: {error.strerror}; so what it leaves out is not "
                "known, and nothing was sent",
                field="workdir",
            ) from None
