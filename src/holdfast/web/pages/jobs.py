"""Jobs: a list that is filtered by words in the address."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

import msgspec
from starlette.responses import Response

from holdfast.client.methods.arrays import ArrayMethods
from holdfast.client.methods.jobs import JobMethods
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.records import HostRecord, JobRecord, ProjectRecord, QueueRecord
from holdfast.core.states import JobState
from holdfast.errors import ValidationError
from holdfast.web.acts import write_bulk
from holdfast.web.page import Page, PageRequest, read_items, together

PAGE_JOBS = 50
MAX_ARRAYS = 200
_OF_ARRAYS = {"states", "queue", "project", "owner", "name"}
"""The filters that say something of an array; with any other its members are listed singly."""
VIEWS = (
    ("All", ""),
    ("Running", "state:running"),
    ("Waiting", "state:waiting state:queued"),
    ("Failed", "state:failed"),
    ("Supervised", "supervised:only"),
    ("Mine", "owner:@me"),
)
WORDS = (
    "state",
    "queue",
    "project",
    "owner",
    "name",
    "label",
    "cause",
    "host",
    "array",
    "parent",
    "supervised",
)
_ANY = ("queue", "project", "owner", "name", "cause", "host")
"""The kinds of words of which a job fits any, like those of `state`."""
_ONE = ("array", "parent")
MAX_OFFERS = 100
_STATES = [state.value for state in JobState]
_LIVE = [state.value for state in JobState if not state.terminal]


def read_filter(text: str) -> dict[str, list[str]]:
    """Read a filter: words as `state:running`, and plain words, which are a part of the name. A job fits
    any word of a kind, and a word of each kind; it has all labels.

    Raises ValidationError for a word that means nothing.
    """
    found: dict[str, list[str]] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValidationError(f"the filter is not understood: {error}", field="q") from None
    for word in words:
        kind, colon, value = word.partition(":")
        if not colon:
            found.setdefault("match", []).append(word)
        elif kind not in WORDS or not value:
            raise ValidationError(
                f"{word!r} filters nothing; the words are {', '.join(f'{w}:…' for w in WORDS)}, "
                "and a part of a name. Of several words of a kind a job fits any, and it fits all kinds",
                field="q",
            )
        elif kind == "state" and value not in _STATES:
            raise ValidationError(
                f"{value!r} is no state; the states are {', '.join(_STATES)}", field="q"
            )
        elif kind in found and (kind in _ONE or (kind == "label" and _names_key(found, value))):
            raise ValidationError(
                f"{word!r} is a second {kind}, which no job has beside the first; a job may fit any of "
                f"several words of {', '.join(('state', *_ANY))}, and fits one of each kind",
                field="q",
            )
        elif kind == "supervised" and value != "only":
            raise ValidationError(f"{word!r} filters nothing; write supervised:only", field="q")
        else:
            found.setdefault(kind, []).append(value)
    return found


def _names_key(found: dict[str, list[str]], label: str) -> bool:
    """Return whether a label's key was named before."""
    key = label.partition("=")[0]
    return any(each.partition("=")[0] == key for each in found["label"])


def make_query(words: dict[str, list[str]]) -> dict[str, object]:
    """Return the parameters of the client's method that lists jobs."""
    query: dict[str, object] = {kind: words[kind] for kind in _ANY if kind in words}
    query |= {kind: words[kind][0] for kind in _ONE if kind in words}
    if "state" in words:
        query["states"] = words["state"]
    if "supervised" in words:
        query["supervised"] = True
    if "match" in words:
        query["match"] = " ".join(words["match"])
    if "label" in words:
        query["labels"] = dict(value.partition("=")[::2] for value in words["label"])
    return query


async def send_words(ask: PageRequest) -> Response:
    """Send the words that complete a filter; a page's script asks for them when one is typed."""
    reader = ask.reader
    queues, projects, hosts, jobs = await together(
        reader.queues(waiting=False),
        reader.projects(waiting=False),
        reader.hosts(),
        read_items(reader, JobMethods.jobs(reader, page_size=2 * MAX_OFFERS)),
    )
    words = msgspec.json.encode(list_offers(queues, projects, hosts, jobs))
    return Response(words, 200, None, "application/json")


def list_offers(
    queues: Iterable[QueueRecord],
    projects: Iterable[ProjectRecord],
    hosts: Iterable[HostRecord],
    jobs: Iterable[JobRecord],
) -> list[str]:
    """Return the words that complete a filter: every state, queue and project, the hosts, and the
    owners and labels of the newest jobs."""
    labels = {f"label:{key}={value}" for job in jobs for key, value in job.labels.items()}
    owners = {f"owner:{job.owner}" for job in jobs if job.owner}
    words = [
        *(f"state:{state}" for state in _STATES),
        *(f"queue:{each.name}" for each in queues),
        *(f"project:{each.name}" for each in projects),
        "owner:@me",
        "supervised:only",
        *sorted(owners),
        *sorted(labels)[:MAX_OFFERS],
        *(f"host:{each.name}" for each in hosts),
    ]
    return [word for word in words if " " not in word][: 4 * MAX_OFFERS]


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    text, trouble = ask.query.get("q", ""), ""
    try:
        query = make_query(read_filter(text))
    except ValidationError as error:
        query, trouble = {}, error.message
    return await _draw(ask, query, text, trouble)


async def show_array(ask: PageRequest, array: ArrayRecord) -> Page:
    """Make the page of an array: how far it is, and its members."""
    return await _draw(ask, {"array": array.id}, f"array:{array.id}", "", array)


async def _draw(
    ask: PageRequest,
    query: dict[str, object],
    text: str,
    trouble: str,
    array: ArrayRecord | None = None,
) -> Page:
    states = words if isinstance(words := query.get("states"), list) else _STATES
    live = [state for state in states if state in _LIVE]
    over = [state for state in states if state not in _LIVE]
    rows: list[JobRecord | ArrayRecord] = []
    next_page = more_live = None
    if live and ("cursor" not in ask.query or not over):
        rows, next_page = await _read_rows(ask, query, live)
    if over:
        more_live = next_page and f"{text} {' '.join(f'state:{each}' for each in live)}"
        ended, next_page = await _read_rows(ask, query, over, shown=live)
        rows += ended
    bulk = {"noun": "job", "find": f"/v1/jobs?{_api_query(query)}"}
    values = {
        "array": array,
        "jobs": [] if trouble else rows,
        "next": None if trouble else next_page,
        "more_live": more_live,
        "filter": text,
        "trouble": trouble,
        "views": VIEWS,
        "cancel": write_bulk("job.cancel", key="id", many="/v1/jobs/cancel", states=_LIVE, **bulk),
        "retry": write_bulk(
            "job.retry", key="id", many="/v1/jobs/retry", states=["failed", "cancelled"], **bulk
        ),
    }
    title = "Jobs" if array is None else array.name
    return Page(template="jobs.html", title=title, values=values, follows=("jobs",), every=10)


async def _read_rows(
    ask: PageRequest, query: dict[str, object], states: list[str], shown: Sequence[str] = ()
) -> tuple[list[JobRecord | ArrayRecord], str | None]:
    """Return the rows of a page of jobs in these states, newest first, and the cursor of the next page.
    Members are folded into their arrays, where the filter allows it; an array in a state of `shown`
    stands among other rows."""
    folds = set(query) <= _OF_ARRAYS
    asked = {**query, "states": states}
    jobs = JobMethods.jobs(
        ask.reader, page_size=PAGE_JOBS, **({**asked, "array": "none"} if folds else asked)
    )
    found = await ask.reader.first(jobs.at(ask.query["cursor"]) if "cursor" in ask.query else jobs)
    rows: list[JobRecord | ArrayRecord] = list(found.items)
    if folds:
        # Both lists go by their ids and take the same cursor, so the arrays that were submitted between
        # the newest and the oldest job of the page stand on it.
        arrays = ArrayMethods.arrays(ask.reader, page_size=MAX_ARRAYS, **asked)
        if "cursor" in ask.query:
            arrays = arrays.at(ask.query["cursor"])
        last = found.items[-1].id if found.next is not None else ""
        rows += [
            array
            for array in await read_items(ask.reader, arrays)
            if array.id > last and array.state not in shown
        ]
    return sorted(rows, key=lambda row: row.id, reverse=True), found.next


def _api_query(query: dict[str, object]) -> str:
    """Return the filter as the API's parameters, with which the page's script acts on all jobs that
    match."""
    from urllib.parse import urlencode

    names = {"states": "state", "labels": "label"}
    pairs: list[tuple[str, str]] = []
    for kind, value in query.items():
        if isinstance(value, list):
            pairs += [(names.get(kind, kind), str(each)) for each in value]
        elif isinstance(value, dict):
            pairs += [("label", f"{key}={each}") for key, each in value.items()]
        else:
            pairs.append((kind, "1" if value is True else str(value)))
    return urlencode(pairs)
