"""JOB on the command line: an id, the beginning of one, a unique name, `ARRAY[7]` or `@last`."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.output import shorten
from holdfast.cli.series.names import find_array, find_member
from holdfast.core.series.dependencies import Wants
from holdfast.errors import NotFound, ValidationError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.client import Client
    from holdfast.core.records import JobRecord
    from holdfast.core.series.records import ArrayRecord

T = TypeVar("T")
LAST = "@last"
MAX_CANDIDATES = 10
# The file of last jobs forgets the controller that was used longest ago.
MAX_CONTROLLERS = 32


def find_job(client: Client, word: str) -> str:
    """Return the id of the job that `word` names.

    A whole id is taken as it is, because the command's own call says whether there is such a job.

    Raises:
        NotFound: no job has this name, or an id that begins so.
        ValidationError: several do: the message lists them.
    """
    from holdfast.core.ids import ID_PATTERN, PREFIX_PATTERN

    if word == LAST:
        return _find_last(client)
    if word in ("", ".", ".."):
        raise NotFound(f"{word!r} names nothing")
    if ID_PATTERN.fullmatch(word):
        return word
    member = find_member(client, _name_last(client, word))
    if member is not None:
        return member
    found: dict[str, JobRecord] = {}
    most = MAX_CANDIDATES + 1
    if len(word) <= 128:
        found |= {
            job.id: job
            for job in itertools.islice(
                client.jobs(name=word, executors="show", page_size=most), most
            )
        }
    if PREFIX_PATTERN.fullmatch(word):
        jobs = itertools.islice(client.jobs(prefix=word, executors="show", page_size=most), most)
        found |= {job.id: job for job in jobs}
    if not found:
        raise NotFound(
            f"there is no job {word[:64]!r}: give its id, the beginning of its id, its name, or "
            f"{LAST}; `holdfast jobs` lists them"
        )
    if len(found) > 1:
        raise ValidationError(_list_candidates(word, list(found.values())), code="ambiguous_job")
    return next(iter(found))


@contextlib.contextmanager
def one_job(client: Client, word: str) -> Iterator[str]:
    """Find the job that a word names, for what an array as a whole has not: logs, attempts,
    checkpoints.

    Raises:
        NotFound: as `find_job`; where the word names an array, it says how its members are named.
    """
    try:
        yield find_job(client, word)
    except NotFound:
        array = _find_array(client, word)
        if array is None:
            raise
        first = array.indices.partition("-")[0].partition(",")[0]
        name = array.id if word == LAST else word
        raise NotFound(
            f"{word!r} is an array of {array.size} jobs; name one of them, as {name}[{first}]"
        ) from None


def find_parent(client: Client, word: str) -> str:
    """Return `JOB[:END]` with an id in place of the word that names the job or the array."""
    name, colon, end = word.rpartition(":")
    if colon and end in list(Wants):
        return f"{find_parent(client, name)}:{end}"
    try:
        return act_on(client, word, lambda job_id: job_id, lambda array: array.id)
    except NotFound as missing:
        if not colon:
            raise
        raise NotFound(f"{missing.message}. After a colon comes {' or '.join(Wants)}") from None


def act_on(
    client: Client, word: str, on_job: Callable[[str], T], on_array: Callable[[ArrayRecord], T]
) -> T:
    """Act on the job that a word names, or, where there is none, on the array."""
    try:
        return on_job(find_job(client, word))
    except NotFound as missing:
        return on_array(find_instead(client, word, missing))


def find_instead(client: Client, word: str, missing: NotFound) -> ArrayRecord:
    """Return the array that a word names which names no job. Raises `missing` where there is none."""
    array = _find_array(client, word)
    if array is None:
        raise missing from None
    return array


def _name_last(client: Client, word: str) -> str:
    """Return `@last[7]` with the id of the last array in it, and any other word as it is."""
    last = _recall(client) if word.startswith(f"{LAST}[") else None
    return word if last is None else last + word.removeprefix(LAST)


def _find_array(client: Client, word: str) -> ArrayRecord | None:
    """Return the array that a word names; `@last` may name one, too."""
    if word != LAST:
        return find_array(client, word)
    last = _recall(client)
    return None if last is None else find_array(client, last)


def _list_candidates(word: str, jobs: list[JobRecord]) -> str:
    jobs = sorted(jobs, key=lambda job: job.id, reverse=True)
    lines = [
        f"  {job.id}  {job.state.value:9}  {shorten(' '.join(job.name.split()), 40)}"
        for job in jobs[:MAX_CANDIDATES]
    ]
    more = ["  … and more"] if len(jobs) > MAX_CANDIDATES else []
    return "\n".join([f"{word!r} names several jobs; give one of these ids:", *lines, *more])


def remember_job(client: Client, job_id: str) -> None:
    """Keep the id of a job or an array for `@last`. A file that cannot be written costs no more than that."""
    import json

    path = _last_file()
    if path is None:
        return
    known = _read_last(path)
    known.pop(client.place.url, None)
    known[client.place.url] = job_id
    kept = dict(list(known.items())[-MAX_CONTROLLERS:])
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(kept, file)
        new.replace(path)


def _find_last(client: Client) -> str:
    """Return the last job submitted from here; without one the newest of the project `default`.
    Raises NotFound where the last one is an array, and where there is none at all."""
    job_id = _recall(client)
    if job_id is not None:
        # An `up` in another folder may have the same address; it does not know this job.
        with contextlib.suppress(NotFound):
            return client.job(job_id).id
        if find_array(client, job_id) is not None:
            raise NotFound(f"{LAST} is the array {job_id}, and no job")
    for job in client.jobs(project="default", page_size=1):
        return job.id
    raise NotFound(f"{LAST}: no job was submitted from here, and the project `default` has none")


def _recall(client: Client) -> str | None:
    """Return the id of the last job or array that was submitted from here to this controller."""
    path = _last_file()
    return _read_last(path).get(client.place.url) if path is not None else None


def _last_file() -> Path | None:
    from pathlib import Path

    state = os.environ.get("XDG_STATE_HOME")
    home = os.environ.get("HOME")
    if not state and not home:
        return None
    return Path(state or f"{home}/.local/state", "holdfast", "last-jobs.json")


def _read_last(path: Path) -> dict[str, str]:
    import json

    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(url): job_id for url, job_id in found.items() if isinstance(job_id, str)}
