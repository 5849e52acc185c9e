"""The folder that goes with a job: its flags, the questions before it is sent, and the sending."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.output import note
from holdfast.client.specs import parse_bytes
from holdfast.core.bundles.code import CodeRef
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.bundles.send import SendProgress, Sent
    from holdfast.client.bundles.walk import Walk
    from holdfast.core.spec import JobSpec

CODE_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--workdir",
        metavar="DIR",
        help="Take this folder along; the job starts in it. `holdfast code --list` shows what goes.",
    ),
    click.option(
        "--git",
        metavar="URL@REF",
        help="Instead: a commit of a git repository (https, ssh), found now, fetched by the host.",
    ),
    click.option(
        "--workdir-max", metavar="SIZE", help="Send a folder of up to this size. [default: 1G]"
    ),
    click.option(
        "--send-anyway",
        is_flag=True,
        default=None,
        help="Send it also with files that may hold secrets, or if it is the home folder.",
    ),
)
_FIELDS = {"path", "max", "send_anyway"}
_TELL_SECONDS = 0.2


class Workdir(msgspec.Struct, frozen=True):
    """The folder that a job takes along. max_bytes: the most bytes that it may have, None for the
    usual bound. send_anyway: send it without a question."""

    path: str
    max_bytes: int | None = None
    send_anyway: bool = False


def take_workdir(fields: dict[str, Any], options: Mapping[str, Any]) -> Workdir | None:
    """Take the folder out of a job file's fields, with the flags over it; None where there is none.
    Where there is a git repository instead, its commit is the `code` of the fields. Raises
    ValidationError."""
    table = fields.pop("workdir", None)
    repository = fields.pop("git", None)
    if options.get("git") is not None:
        table, repository = None, options["git"]
    if repository is not None and options.get("workdir") is None:
        if table is not None:
            raise ValidationError("code is either a folder or a repository: drop one", field="git")
        from holdfast.client.bundles.git import resolve_git

        fields["code"] = resolve_git(str(repository))
        return None
    if table is not None and not isinstance(table, (str, Mapping)):
        raise ValidationError("workdir is a folder, or a table with its path", field="workdir")
    given = {"path": table} if isinstance(table, str) else dict(table or {})
    if odd := sorted(given.keys() - _FIELDS):
        known = ", ".join(sorted(_FIELDS))
        raise ValidationError(
            f"workdir has no field {odd[0]!r}; there are {known}", field="workdir"
        )
    for name, option in (("path", "workdir"), ("max", "workdir_max"), ("send_anyway",) * 2):
        if options.get(option) is not None:
            given[name] = options[option]
    path = given.get("path")
    if path is None:
        return None
    try:
        limit = None if given.get("max") is None else parse_bytes(given["max"])
    except (ValueError, AttributeError) as error:
        raise ValidationError(f"--workdir-max: {error}", field="workdir") from None
    return Workdir(str(path), limit, bool(given.get("send_anyway")))


def find_code(client: Client, options: Mapping[str, Any], project: str) -> CodeRef:
    """Return the code that the flags name now: a commit, or a folder, which is sent."""
    fields: dict[str, Any] = {}
    workdir = take_workdir(fields, options)
    if "code" in fields:
        code: CodeRef = fields["code"]
        return code
    return send_folder(client, workdir or Workdir("."), project).code


UNSENT = CodeRef(digest="0" * 64)
"""Stands for the code of a spec whose folder has still to be sent."""


def send_workdir(client: Client, spec: JobSpec, workdir: Workdir | None) -> JobSpec:
    """Send a job's folder, and return the spec that names what was sent. Raises ValidationError."""
    if workdir is None:
        return spec
    code = send_folder(client, workdir, spec.project).code
    return msgspec.structs.replace(spec, code=code)


def note_left_behind(spec: JobSpec) -> None:
    """Note where a command names a file of this folder, which no host has."""
    if spec.code is not None or spec.cwd is not None:
        return
    words = [part for word in (*spec.argv, spec.shell or "") for part in word.split()]
    for word in words:
        if not word.startswith(("/", "-", "..")) and os.path.isfile(word):
            note(
                f"{word} is a file of this folder, which hosts do not have; --workdir . takes it along"
            )
            return


def send_folder(client: Client, workdir: Workdir, project: str) -> Sent:
    """Ask the user about the folder where that is needed, and send it, showing the progress."""
    import gc

    from holdfast.client.bundles.care import find_home
    from holdfast.client.bundles.send import FolderSender, refuse_unreadable
    from holdfast.client.bundles.walk import walk

    _ask(find_home(workdir.path, os.path.expanduser("~")), workdir)
    gc.disable()  # a command is short, and to look through a hundred thousand paths takes a while
    found = walk(workdir.path)
    refuse_unreadable(found)
    check_folder(found, workdir)
    line = ProgressLine(found)
    address = client.place.url
    with line:
        sender = FolderSender(client, found, project, address, tell=line.tell, note=line.note)
        sent = sender.send()
    line.finish(sent)
    return sent


def check_folder(found: Walk, workdir: Workdir) -> None:
    """Raise ValidationError for a folder over its bound. Ask the user before a folder with secrets
    is sent."""
    from holdfast.client.bundles.care import MAX_BYTES, find_secrets, say_too_large

    limit = MAX_BYTES if workdir.max_bytes is None else workdir.max_bytes
    if found.size > limit:
        sentence = say_too_large(found.size, limit, found.list_largest())
        raise ValidationError(sentence, field="workdir", code="workdir_too_large")
    _ask(find_secrets(one.path for one in found.found), workdir)


def _ask(worries: list[str], workdir: Workdir) -> None:
    """Ask the user whether a folder is sent in spite of worries. Raises ValidationError where the
    user refuses, and where no terminal can answer."""
    if not worries or workdir.send_anyway:
        return
    for worry in worries:
        note(worry)
    if sys.stdin.isatty() and sys.stderr.isatty():
        if click.confirm("holdfast: send it all the same?", default=False, err=True):
            return
        raise ValidationError("nothing was sent", field="workdir", code="workdir_refused")
    raise ValidationError(
        f"the folder is not sent: {'; '.join(worries)}. Name them in .holdfastignore, or say "
        "--send-anyway",
        field="workdir",
        code="workdir_refused",
    )


class ProgressLine:
    """Shows on a terminal the progress of sending a folder, and its outcome."""

    def __init__(self, found: Walk) -> None:
        self._found = found
        self._shows = sys.stderr.isatty()
        self._told = self._began = time.monotonic()
        self._open = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exception: object) -> None:
        self._clear()

    def tell(self, progress: SendProgress) -> None:
        """Show the progress, a few times a second."""
        now = time.monotonic()
        if not self._shows or now - self._told < _TELL_SECONDS:
            return
        from holdfast.core.words import say_bytes

        self._told, self._open = now, True
        rate = progress.read / max(0.001, now - self._began)
        left = (progress.whole - progress.read) / rate if rate else 0.0
        text = f"{say_bytes(progress.read)} of {say_bytes(progress.whole)}, {say_bytes(rate)}/s, {left:.0f} s"
        sys.stderr.write(f"\r\x1b[Kholdfast: sending code: {text}")
        sys.stderr.flush()

    def note(self, sentence: str) -> None:
        """Write a sentence on a line of its own."""
        self._clear()
        note(sentence)

    def finish(self, sent: Sent) -> None:
        """Write how much was sent, if anything was."""
        from holdfast.core.words import count_of, say_bytes

        if self._shows and sent.sent:
            note(
                f"code {sent.code.describe()}: {count_of(sent.files, 'file')}, {say_bytes(sent.size)}; "
                f"{say_bytes(sent.sent)} were sent"
            )

    def _clear(self) -> None:
        if self._open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._open = False
