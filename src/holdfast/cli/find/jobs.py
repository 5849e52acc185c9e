"""JOB on the command line: an id, the beginning of one, a unique name, `ARRAY[7]` or `@last`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from holdfast.cli.find.arrays import find_array
from holdfast.client.jobs.last import LAST, recall_last, remember_last
from holdfast.core.dependencies import Wants
from holdfast.core.ids import ID_PATTERN
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.arrays.records import ArrayRecord

T = TypeVar("T")


def find_job(client: Client, word: str) -> str:
    """Return the id of the job that `word` names.

    A whole id is taken as it is, because the command's own call says whether there is such a job.

    Raises:
        NotFound: no job has this name, or an id that begins so.
        ValidationError: several do: the message lists them.
    """
    return word if ID_PATTERN.fullmatch(word) else client.find(word).id


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


def _find_array(client: Client, word: str) -> ArrayRecord | None:
    """Return the array that a word names, None where it names none. `@last` stands for the newest
    submission, which may be an array."""
    if word != LAST:
        return find_array(client, word)
    last = recall_last(client.place.url)
    return None if last is None else find_array(client, last)


def remember_job(client: Client, job_id: str) -> None:
    """Keep the id of a job or an array for `@last`."""
    remember_last(client.place.url, job_id)
