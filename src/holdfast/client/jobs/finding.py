"""The job or the array that a word names, as scripts that both clients run: an id, the beginning of
one, the end of one of the newest, a unique name, `ARRAY[7]`, or `@last`."""

from __future__ import annotations

import re
from typing import TypeVar

from holdfast.client.jobs.last import LAST, name_last, recall_last
from holdfast.client.late import on_arrays, on_jobs
from holdfast.client.rest import PageCall, ask
from holdfast.client.scripts import Script, take_answer
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.ids import ID_PATTERN, PREFIX_PATTERN, ends_id
from holdfast.core.records import JobRecord
from holdfast.errors import NotFound, ValidationError

T = TypeVar("T")
MAX_CANDIDATES = 10
NEWEST, NEWEST_ARRAYS = 500, 100
"""The numbers of newest jobs and arrays whose ids' ends are compared with a word."""
_MAX_NAME_CHARS = 128
_MEMBER = re.compile(r"(.+)\[(\d{1,10})\]")


def find_job(word: str, url: str) -> Script[JobRecord]:
    """Return the job that a word names; `url` is the controller's address, for `@last`.

    Raises:
        NotFound: no job has this name, or an id that begins with the word.
        ValidationError: several jobs do; the message lists them.
    """
    if word == LAST:
        return (yield from _find_last(url))
    if word in ("", ".", ".."):
        raise NotFound(f"{word!r} names nothing")
    if ID_PATTERN.fullmatch(word):
        return (yield from _take_job(word))
    match = _MEMBER.fullmatch(name_last(url, word))
    array = None if match is None else (yield from find_array(match[1]))
    if match is not None and array is not None:
        return (yield from _take_job(f"{array.id}[{int(match[2])}]"))
    found: dict[str, JobRecord] = {}
    if len(word) <= _MAX_NAME_CHARS:
        found |= {job.id: job for job in (yield from _take_first(_list_jobs(name=word)))}
    if PREFIX_PATTERN.fullmatch(word):
        found |= {job.id: job for job in (yield from _take_first(_list_jobs(prefix=word)))}
    if not found and ends_id(word):
        recent = yield from _take_first(_list_jobs(limit=NEWEST))
        found |= {job.id: job for job in recent if job.id.endswith(word)}
    if not found:
        raise NotFound(
            f"there is no job {word[:64]!r}: give its id, the beginning or the end of its id, its name, "
            f"or {LAST}; `holdfast jobs` lists them"
        )
    if len(found) > 1:
        raise ValidationError(_list_candidates(word, list(found.values())), code="ambiguous_job")
    return next(iter(found.values()))


def find_array(word: str) -> Script[ArrayRecord | None]:
    """Return the array that a word names by its id, the beginning of its id, or its name; None where
    no array has it. Raises ValidationError where several have."""

    def list_arrays(**which: str) -> PageCall[ArrayRecord]:
        return ask(on_arrays.LIST_ARRAYS, **which, limit=2)

    if word in ("", ".", "..", LAST):
        return None
    if ID_PATTERN.fullmatch(word):
        try:
            array: ArrayRecord = yield from take_answer(ask(on_arrays.GET_ARRAY, word))
            return array
        except NotFound:
            return None
    found = yield from _take_first(list_arrays(name=word))
    if not found and PREFIX_PATTERN.fullmatch(word):
        found = yield from _take_first(list_arrays(prefix=word))
    if not found and ends_id(word):
        recent = ask(on_arrays.LIST_ARRAYS, limit=NEWEST_ARRAYS)
        found = [one for one in (yield from _take_first(recent)) if one.id.endswith(word)]
    if len(found) > 1:
        ids = ", ".join(array.id for array in found)
        raise ValidationError(
            f"{word!r} names several arrays: {ids}, …; give one of these ids", code="ambiguous_job"
        )
    return found[0] if found else None


def _find_last(url: str) -> Script[JobRecord]:
    """Return the last job submitted from here; without one the newest of the project `default`.
    Raises NotFound where the last submission was an array, and where there is no job at all."""
    job_id = recall_last(url)
    if job_id is not None:
        try:
            return (yield from _take_job(job_id))
        except NotFound:  # an `up` in another folder may have the same address
            pass
        if (yield from find_array(job_id)) is not None:
            raise NotFound(f"{LAST} is the array {job_id}, and no job")
    for job in (yield from _take_first(_list_jobs(project="default", limit=1))):
        return job
    raise NotFound(f"{LAST}: no job was submitted from here, and the project `default` has none")


def _take_job(job_id: str) -> Script[JobRecord]:
    job: JobRecord = yield from take_answer(ask(on_jobs.GET_JOB, job_id))
    return job


def _list_jobs(limit: int = MAX_CANDIDATES + 1, **which: str) -> PageCall[JobRecord]:
    show = {} if "project" in which else {"executors": "show"}
    return ask(on_jobs.LIST_JOBS, **which, **show, limit=limit)


def _take_first(call: PageCall[T]) -> Script[list[T]]:
    """Return the items of the first page."""
    page = yield from take_answer(call)
    return list(page.items)


def _list_candidates(word: str, jobs: list[JobRecord]) -> str:
    jobs = sorted(jobs, key=lambda job: job.id, reverse=True)
    lines = [
        f"  {job.id}  {job.state.value:9}  {' '.join(job.name.split())[:40]}"
        for job in jobs[:MAX_CANDIDATES]
    ]
    more = ["  … and more"] if len(jobs) > MAX_CANDIDATES else []
    head = f"{word!r} names several jobs; give one of these ids, or the end of one:"
    return "\n".join([head, *lines, *more])
