"""Read the file of a user's contexts: `$XDG_CONFIG_HOME/holdfast/contexts.json`.

The file holds tokens, so that it is refused where another user could have read it: a token that
others read is to be made anew, not used. `cli/where/keeping.py` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.errors import Conflict, NotFound, ValidationError

LOCAL = "local"
"""The context of the nearest running `holdfast up`; it has no entry in the file."""
_FILE = "contexts.json"
_NAME_CHARACTERS = 64


class CliContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named server. urls: the server's addresses, in the order in which they are tried. ca_file:
    PEM of the authority that signed its certificate, an absolute path; None for the system's."""

    urls: tuple[str, ...]
    token: str | None = None
    ca_file: str | None = None


class CliContexts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All contexts of a user. current: the context that is used where no other is named."""

    current: str = LOCAL
    contexts: dict[str, CliContext] = {}

    def get(self, name: str) -> CliContext:
        """Return the context of a name. Raises NotFound, which lists the names on record."""
        found = self.contexts.get(name)
        if found is None:
            names = ", ".join(sorted([*self.contexts, LOCAL]))
            raise NotFound(
                f"there is no context {name[:_NAME_CHARACTERS]!r}; there are: {names}. "
                f"`holdfast login URL --context {name[:_NAME_CHARACTERS]}` makes it",
                code="no_context",
            )
        return found

    def put(self, name: str, context: CliContext) -> CliContexts:
        """Return the contexts with this one added, which becomes the current one. Raises Conflict
        where the name is that of another server."""
        there = self.contexts.get(name)
        if there is not None and not set(there.urls) & set(context.urls):
            raise Conflict(
                f"the context {name} is {there.urls[0]}; give this one another name with --context, "
                f"or delete that one with `holdfast contexts delete {name}`",
                code="context_exists",
            )
        return CliContexts(current=name, contexts={**self.contexts, name: context})

    def use(self, name: str) -> CliContexts:
        """Return the contexts with the context `name` as the current one. Raises NotFound."""
        if name != LOCAL:
            self.get(name)
        return CliContexts(current=name, contexts=self.contexts)

    def without(self, name: str) -> CliContexts:
        """Return the contexts without the context `name`. Where that was the current one, `local`
        becomes current. Raises NotFound."""
        self.get(name)
        rest = {other: kept for other, kept in self.contexts.items() if other != name}
        return CliContexts(current=LOCAL if self.current == name else self.current, contexts=rest)


def check_name(name: str) -> str:
    """Return a name, if a new context may have it. Raises ValidationError."""
    plain = name.replace("-", "").replace("_", "").replace(".", "")
    if not (plain.isascii() and plain.isalnum()) or len(name) > _NAME_CHARACTERS or name[0] in "-.":
        raise ValidationError(
            f"{name[:_NAME_CHARACTERS]!r} is no name of a context: use letters, digits, `-`, `_` "
            f"and `.`, at most {_NAME_CHARACTERS}",
            field="context",
        )
    if name == LOCAL:
        raise ValidationError(
            f"{LOCAL!r} names the nearest running `holdfast up`; give this server another name "
            "with --context",
            field="context",
        )
    return name


def find_config_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of this user's own configuration; None where no variable names it."""
    given, home = environ.get("XDG_CONFIG_HOME"), environ.get("HOME")
    if given and os.path.isabs(given):  # a relative one counts as unset, as its specification says
        return Path(given) / "holdfast"
    return Path(home) / ".config" / "holdfast" if home else None


def find_contexts_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the file of contexts, whether or not the file is there; None where no
    variable names this user's folder."""
    folder = find_config_folder(environ)
    return folder / _FILE if folder else None


def read_contexts(environ: Mapping[str, str]) -> CliContexts:
    """Read the contexts of a user; the answer has none where there is no file.

    Raises ValidationError for a file that other users may read or write, that belongs to another
    user, or that cannot be understood.
    """
    path = find_contexts_file(environ)
    if path is None:
        return CliContexts()
    try:
        with path.open("rb") as file:
            refuse_shared(path, os.fstat(file.fileno()))
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return CliContexts()
    except OSError as error:
        if not os.path.exists(path):  # Path.exists would raise here
            # HOME is another user's, as under `setpriv` or `sudo -u`: this user keeps no contexts.
            return CliContexts()
        why = error.strerror or str(error)
        raise ValidationError(f"the contexts of {path} cannot be read: {why}") from error
    try:
        return msgspec.json.decode(data, type=CliContexts)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValidationError(
            f"the contexts of {path} are not understood ({error}); mend the file, or move it away "
            "and log in again"
        ) from error


def refuse_shared(path: Path, status: os.stat_result) -> None:
    """Raise ValidationError for a file of secrets that other users can read, or that is theirs."""
    if status.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        raise ValidationError(
            f"{path} belongs to uid {status.st_uid}, and this is uid {os.geteuid()}, so its tokens "
            "are not used; move it away and log in again"
        )
    if status.st_mode & 0o077:
        raise ValidationError(
            f"{path} holds tokens, and its mode {status.st_mode & 0o777:04o} lets other users "
            f"have them. Run `chmod 600 {path}`, and make new tokens if others use this machine"
        )
