"""The command `code`: which files of a folder would be sent, and which files a job has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.output import table
from holdfast.core.bundles.manifest import FILE, FOLDER, Entry, count_bytes, show_path
from holdfast.core.words import count_of, short_bytes

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.bundles.walk import Walk

_KINDS = ("file", "folder", "link")


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@talks
def code(
    io: CommandIO,
    job_id: str | None,
    listed: bool,
    workdir: str | None,
    other: str | None,
    target: str | None,
) -> None:
    """Show what would go with --workdir, or the code that a job has.

    Without a job: the files of this folder that would go, its five largest folders, and why a path is
    left out. In a git checkout go the files that git tracks or could track; elsewhere all that no
    .gitignore leaves out. A .holdfastignore leaves out more.

    \b
    Examples:
      holdfast code                       what would go of this folder
      holdfast code --list          each path; the reason of each that does not go
      holdfast code JOB --list            what a job has
      holdfast code JOB --diff JOB2       what is other in JOB2
      holdfast code JOB --get again       a copy of a job's code

    listed (--list): List every path. [default: a summary]
    workdir (DIR): Without a job: the folder. [default: this one]
    other (--diff JOB2): How the code of another job differs.
    target (--get DIR): Write the job's code into a new folder.
    """
    if job_id is None:
        if other is not None or target is not None:
            raise click.UsageError("--diff and --get go with a job")
        _show_folder(io, workdir or ".", listed)
        return
    if workdir is not None:
        raise click.UsageError("--workdir goes without a job")
    with io.client() as client:
        _show_job(io, client, find_job(client, job_id), listed, other, target)


def _show_folder(io: CommandIO, folder: str, listed: bool) -> None:
    from holdfast.client.bundles.care import find_home, find_secrets
    from holdfast.client.bundles.walk import walk

    found = walk(folder, explain=True)
    paths = [one.path for one in found.found]
    worries = [*find_home(folder, os.path.expanduser("~")), *find_secrets(paths, whole=True)]
    if io.as_json:
        io.show_json(
            {
                "folder": show_path(found.root),
                "files": found.files,
                "bytes": found.size,
                "largest": [{"folder": show_path(p), "bytes": n} for p, n in found.list_largest()],
                "paths": [show_path(path) for path in paths],
                "left_out": [{"path": show_path(o.path), "why": o.why} for o in found.left_out],
                "unreadable": [{"path": show_path(o.path), "why": o.why} for o in found.unreadable],
                "hints": found.hints,
                "asks": worries,
            }
        )
        return
    lines = [show_path(one.path) for one in found.found] if listed else []
    io.show(None, "\n".join([*lines, *_sum_up(found, worries, listed)]))


def _sum_up(found: Walk, worries: Sequence[str], listed: bool) -> list[str]:
    lines = [
        f"{count_of(found.files, 'file')} of {short_bytes(found.size)} would go of {show_path(found.root)}"
    ]
    largest = found.list_largest()
    if largest:
        named = ", ".join(f"{show_path(path)} {short_bytes(each)}" for path, each in largest)
        lines.append(f"the largest folders: {named}")
    shown = found.left_out if listed else found.left_out[:10]
    lines += [f"left out: {show_path(one.path)}: {one.why}" for one in shown]
    if len(shown) < len(found.left_out):
        lines.append(f"and {len(found.left_out) - len(shown)} more are left out; --list names them")
    lines += [
        f"cannot be read: {show_path(one.path)}: {one.why}; nothing goes before it can, or is left out"
        for one in found.unreadable
    ]
    lines += found.hints
    return [*lines, *(f"asks before it goes: {worry}" for worry in worries)]


def _show_job(
    io: CommandIO, client: Client, job_id: str, listed: bool, other: str | None, target: str | None
) -> None:
    from holdfast.client.bundles.fetch import compare_codes, fetch_code, restore_code

    mine = fetch_code(client, job_id)
    if other is not None:
        theirs = fetch_code(client, find_job(client, other))
        found = compare_codes(mine, theirs)
        same = f"jobs {mine.job_id} and {theirs.job_id} have the same code"
        rows = [f"{one.what:8} {show_path(one.path)}" for one in found]
        plain = [{"path": show_path(one.path), "what": one.what} for one in found]
        io.show(plain, "\n".join(rows) or same)
        return
    if target is not None:
        restore_code(client, mine, target)
        io.show({"folder": target, "digest": mine.digest}, f"the code of {job_id} is in {target}")
        return
    files, total = count_bytes(mine.entries)
    attempts = client.attempts(job_id)
    described = attempts[-1].code.describe() if attempts and attempts[-1].code else mine.digest
    if io.as_json:
        io.show_json(
            {
                "digest": mine.digest,
                "files": files,
                "bytes": total,
                "paths": [_plain(e) for e in mine.entries],
            }
        )
        return
    head = f"code {described}: {count_of(files, 'file')}, {short_bytes(total)}"
    io.show(None, "\n".join([_draw(mine.entries), head]) if listed else head)


def _plain(entry: Entry) -> dict[str, Any]:
    plain: dict[str, Any] = {"path": show_path(entry.path), "kind": _KINDS[entry.kind]}
    if entry.kind == FILE:
        plain |= {"bytes": entry.size, "sha256": [d.hex() for d, _, _ in entry.list_pieces()]}
    return plain | ({"target": show_path(entry.target)} if entry.target else {})


def _draw(entries: Sequence[Entry]) -> str:
    rows = [
        (
            f"{e.bits:o}",
            short_bytes(e.size) if e.kind == FILE else _KINDS[e.kind],
            e.digests[:6].hex() or "-",
            show_path(e.path),
        )
        for e in entries
        if e.kind != FOLDER
    ]
    return table(("BITS", "SIZE", "SHA256", "PATH"), rows)
