"""Each operation for users is there for the SDK, the command line and the pages, and what it reads for
GraphQL, or stands below with its reason. REST's reference and OpenAPI have every operation, because
they are made of the same table."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import holdfast
from holdfast.controller.graphql.every import name_root
from holdfast.controller.graphql.schema import load_schema
from holdfast.wire.operations import every
from holdfast.wire.operations.acts import ACTS
from holdfast.wire.operations.operation import Operation, Role

SOURCE = Path(holdfast.__file__).parent
USERS = (Role.ANYONE, Role.READ, Role.SUBMIT, Role.ADMIN)
SDK, CLI, PAGE, GRAPHQL = "sdk", "cli", "page", "graphql"
BYTES = "the bytes go through another method of the same thing, in pieces"
STREAM = "an answer of GraphQL holds no bytes and no stream"
FILES = "a command sends files of its user's folder, which a page cannot read"
SERVER = "monitoring and browsers ask it, not a user's program"
BULK = "a page sends an act to each row that a person chose"
GAPS = {
    "arrays.SUBMIT_ARRAY": ({CLI, PAGE}, "`submit` makes it, through a private method; " + FILES),
    "arrays.CANCEL_ARRAY": ({PAGE}, "an array's page lists its members, with their acts"),
    "arrays.RETRY_ARRAY": ({PAGE}, "an array's page lists its members, with their acts"),
    "bundles.PUT_PACK": ({SDK, CLI, PAGE}, BYTES),
    "bundles.PUT_BUNDLE": ({SDK, CLI, PAGE}, BYTES),
    "bundles.GET_BUNDLE": ({CLI, PAGE}, "it asks whether code is there before it is sent"),
    "bundles.GET_JOB_PLAN": ({PAGE, GRAPHQL}, FILES),
    "calls.CREATE_SET": ({PAGE}, "calls are submitted by Python code"),
    "calls.APPEND_CALLS": ({CLI, PAGE}, "calls are submitted by Python code"),
    "bundles.GET_JOB_PACK": ({GRAPHQL}, STREAM),
    "calls.GET_VALUE": ({GRAPHQL}, STREAM),
    "jobs.SEARCH_LOGS": ({GRAPHQL}, STREAM),
    "calls.GET_CALL_LOGS": ({PAGE, GRAPHQL}, "a page of a call is still to be made"),
    "calls.PUT_VALUE": ({PAGE}, "calls are submitted by Python code"),
    "graphql.ANSWER_QUERY": ({SDK, CLI, PAGE}, "it is a face of its own"),
    "jobs.SUBMIT_BATCH": ({PAGE}, FILES),
    "jobs.CANCEL_JOBS": ({PAGE}, BULK),
    "jobs.RETRY_JOBS": ({PAGE}, BULK),
    "jobs.GET_POLICY": ({PAGE}, "a job's page shows the settings in force, with its policy"),
    "jobs.LIST_SUSPECTS": ({CLI}, "`show` and `why` say them"),
    "jobs.LIST_FORECASTS": ({PAGE}, "a waiting job's page says its own"),
    "jobs.GET_LOGS": ({PAGE, GRAPHQL}, "the pages' script reads the stream itself"),
    "jobs.GET_CHECKPOINT": ({SDK, CLI, PAGE, GRAPHQL}, BYTES),
    "jobs.PUT_CHECKPOINT": ({PAGE}, FILES),
    "jobs.DELETE_CHECKPOINTS": ({PAGE}, "a slip there would cost days of work"),
    "notices.GET_TARGET": ({PAGE}, "the list has all that a target shows"),
    "outputs.GET_OUTPUTS_PLAN": ({SDK, CLI, PAGE, GRAPHQL}, BYTES),
    "outputs.GET_OUTPUTS_PACK": ({SDK, CLI, PAGE, GRAPHQL}, BYTES),
    "pools.PUT_POOL": ({PAGE}, "a pool is made of a file that stands under version control"),
    "pools.PATCH_POOL": ({PAGE}, "a pool's keys stand in its file; its bounds have an act"),
    "pools.RUN_CYCLE": ({PAGE}, "cycles run by themselves every few seconds"),
    "pools.GET_STATUS": ({CLI, PAGE}, "`status`, `pools` and *Now* say the same by thing"),
    "pools.COUNT_HOSTS": ({CLI}, "`hosts` says the same by host"),
    "pools.LIST_HEALTH": ({CLI, PAGE}, "`hosts` and its page say the same"),
    "pools.LIST_PERFORMANCE": ({CLI, PAGE}, "`report --by host` says the same"),
    "projects.DELETE_PROJECT": ({PAGE}, "a project without settings and jobs is not shown"),
    "queues.LIST_DEPTHS": ({CLI}, "it is a plot"),
    "reports.GET_LEDGER": ({CLI, PAGE}, "`report` and its page say it in words"),
    "reports.PUT_PRICE": ({PAGE}, "a price is set once, and its effect is read before"),
    "schedules.PUT_SCHEDULE": ({PAGE}, FILES),
    "schedules.PIN_SCHEDULE": ({PAGE}, FILES),
    "server.GET_FRONT_PAGE": ({SDK, CLI, PAGE, GRAPHQL}, SERVER),
    "server.GET_QUESTION_PAGE": ({SDK, CLI, PAGE, GRAPHQL}, SERVER),
    "server.GET_OPENAPI": ({SDK, CLI, PAGE, GRAPHQL}, "`rest.md` is made of it"),
    "server.GET_METRICS": ({SDK, CLI, PAGE, GRAPHQL}, SERVER),
    "server.GET_HEALTH": ({SDK, CLI, PAGE, GRAPHQL}, SERVER),
    "server.GET_READINESS": ({SDK, CLI, PAGE, GRAPHQL}, SERVER),
    "sessions.OPEN_SESSION": ({PAGE, GRAPHQL}, "the pages' script opens it itself"),
    "sessions.CREATE_TICKET": ({SDK, CLI, PAGE}, "the pages' script asks for it itself"),
    "sessions.SHOW_RIGHT": ({CLI}, "a session that is refused says why"),
    "settings.GET_RULES": ({PAGE}, "rules stand in a file under version control"),
    "settings.PUT_RULES": ({PAGE}, "rules stand in a file under version control"),
    "settings.TRY_RULES": ({PAGE}, "rules stand in a file under version control"),
    "tokens.CREATE_LINK": ({PAGE}, "a page is open already"),
    "tokens.WHO_AM_I": ({PAGE}, "each page has its reader's token"),
    "tokens.GET_SERVER": ({PAGE}, "each page has the server's version"),
    "webhooks.PATCH_WEBHOOK": ({PAGE}, "a webhook's acts are pause, test and a new secret"),
    "webhooks.GET_DELIVERY": ({PAGE}, "the list has its state and its error"),
    "workflows.SUBMIT_WORKFLOW": ({PAGE}, FILES),
}


def list_operations() -> dict[str, Operation]:
    """The operations that users call, by module and name."""
    return {n: found for n, found in every.list_operations().items() if found.role in USERS}


def read(folder: str) -> list[ast.Module]:
    return [ast.parse(path.read_text()) for path in (SOURCE / folder).rglob("*.py")]


def find_methods() -> dict[str, set[str]]:
    """Operation → the functions of the client that call it."""
    found: dict[str, set[str]] = {}
    for module in read("client"):
        for function in ast.walk(module):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for part in ast.walk(function):
                    match part:
                        case ast.Attribute(ast.Name(room), name) if room.startswith("on_"):
                            found.setdefault(f"{room[3:]}.{name}", set()).add(function.name)
    return found


@functools.cache
def list_words(folder: str) -> set[str]:
    """The names that the code of a face uses."""
    parts = [part for module in read(folder) for part in ast.walk(module)]
    words = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return words | {part.id for part in parts if isinstance(part, ast.Name)}


def is_mirrored(operation: Operation) -> bool:
    """True where a query can begin with what the operation reads."""
    root = load_schema().core.query_type
    assert root is not None
    word, *more = name_root(operation.path).split("_")
    return word + "".join(part.capitalize() for part in more) in root.fields


def find_gaps() -> dict[str, set[str]]:
    methods, acts = find_methods(), {id(act.operation) for act in ACTS.values()}
    gaps = {}
    for name, operation in list_operations().items():
        called = methods.get(name, set())
        there = {SDK} if called else set()
        there |= {CLI} if called & list_words("cli") else set()
        there |= {PAGE} if called & list_words("web") or id(operation) in acts else set()
        # GraphQL only reads.
        there |= {GRAPHQL} if operation.method != "GET" or is_mirrored(operation) else set()
        gaps[name] = {SDK, CLI, PAGE, GRAPHQL} - there
    return {name: lacking for name, lacking in gaps.items() if lacking}


def test_an_operation_that_a_face_lacks_has_its_reason() -> None:
    assert find_gaps() == {name: lacking for name, (lacking, _) in GAPS.items()}


def test_the_operations_are_found() -> None:
    """Otherwise the test above holds nothing."""
    assert len(list_operations()) > 120
    assert find_methods()["pools.PAUSE_POOL"] == {"pause_pool"}
