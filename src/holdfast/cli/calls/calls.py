"""`calls`: calls of Python functions, listed, looked into, cancelled, retried and made."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.calls.calling import (
    bring_code,
    check_arguments,
    make_spec,
    read_declared,
    take_code_flags,
    wait_for,
)
from holdfast.cli.code.workdir import CODE_OPTIONS
from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.options import COUNT, OWNER, POSITIVE, add_options, choose_owner, read_seconds
from holdfast.cli.output import age, facts, note, print_text, say_state, table, write_stream
from holdfast.core.ids import ID_PATTERN, ends_id
from holdfast.core.words import count_of, split_span
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.states import tell_state

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.wire.calls import CallResult, CallSetView, CallView

SET = click.argument("name", metavar="SET")
CALL = click.argument("name", metavar="SET.INDEX")
STATES = ("pending", "succeeded", "failed", "cancelled")
RETRIED_AT_ONCE = 10_000


@click.group(invoke_without_command=True)
@click.option("--project", help="Only this project.")
@OWNER
@click.option("--limit", type=POSITIVE, default=20, help="The most to list.")
@click.pass_context
@talks
def calls(
    io: CommandIO, context: click.Context, project: str | None, limit: int, **whose: Any
) -> None:
    """List calls of Python functions, by the sets they were submitted in, newest first.

    \b
    Examples:
      holdfast calls
      holdfast calls show SET
      holdfast calls why SET.3
      holdfast calls call mytasks:double '{"x": 3}'
    """
    if context.invoked_subcommand is not None:
        return
    with io.client() as client:
        owner = choose_owner(**whose)
        found = client.call_sets(project=project, owner=owner, page_size=min(limit, 500))
        rows = list(itertools.islice(found, limit))
    nothing = "no calls. Submit some with `@holdfast.task`, or `holdfast calls call`"
    io.show(rows, calls_table(rows) if rows else nothing)


def calls_table(rows: Sequence[CallSetView]) -> str:
    """Draw the table of `calls`."""
    return table(
        ("ID", "FUNCTION", "STATE", "DONE", "FAILED", "RATE", "AGE"),
        [
            (
                each.id,
                each.spec.function,
                tell_state(each).word,
                f"{each.succeeded}/{_count_text(each)}",
                str(each.failed),
                rate_text(each),
                age(datetime.fromtimestamp(each.created_at, UTC)),
            )
            for each in rows
        ],
        elastic=1,
    )


def _count_text(view: CallSetView) -> str:
    return str(view.count) if view.count is not None else f"{view.submitted}+"


def rate_text(view: CallSetView, now: float | None = None) -> str:
    """Return the number of calls that ended per second, from the set's creation to its end, or
    until now."""
    ended = view.succeeded + view.failed + view.cancelled
    until = view.ended_at if view.ended_at is not None else (now or time.time())
    seconds = until - view.created_at
    if not ended or seconds <= 0:
        return "-"
    rate = ended / seconds
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def find_set(client: Client, word: str) -> str:
    """Return the id of the call set of which `word` is the beginning or the end, or of the newest
    one for @last. Raises NotFound, ValidationError."""
    if ID_PATTERN.fullmatch(word):
        return word
    recent = itertools.islice(client.call_sets(page_size=500), 1 if word == "@last" else 500)
    all_ids = [view.id for view in recent]
    ids = [one for one in all_ids if word == "@last" or (word and one.startswith(word))]
    if not ids and ends_id(word):
        ids = [one for one in all_ids if one.endswith(word)]
    if not ids:
        message = (
            f"there is no call set {word[:64]!r} among the last 500; `holdfast calls` lists them"
        )
        raise NotFound(message)
    if len(ids) > 1:
        raise ValidationError(f"{word!r} begins {len(ids)} call sets; give more of the id")
    return ids[0]


def read_call_name(word: str) -> tuple[str, int | None]:
    """Read SET or SET.INDEX. Raises ValidationError."""
    name, dot, index = word.partition(".")
    if not dot:
        return name, None
    if not (index.isascii() and index.isdigit()):
        raise ValidationError(f"{word!r} is not SET.INDEX; calls are numbered from 0")
    return name, int(index)


@calls.command()
@click.argument("name", metavar="SET[.INDEX]")
@click.option("--logs", is_flag=True, help="Of one call: what it printed, too.")
@talks
def show(io: CommandIO, name: str, logs: bool) -> None:
    """Show a call set, or one call with its result or error.

    \b
    Examples:
      holdfast calls show 06ch2v8wq1m4kz7d9x3t
      holdfast calls show 06ch2v8wq1m4kz7d9x3t.17 --logs
    """
    word, index = read_call_name(name)
    if logs and index is None:
        raise ValidationError(f"--logs is of one call: give it, as {word}.0")
    with io.client() as client:
        set_id = find_set(client, word)
        if index is not None:
            call = client.call_view(set_id, index)
            if logs and io.as_json:
                io.show_json({"call": call, "logs": list(client.call_logs(set_id, index))})
                return
            io.show(call, show_call(call))
            if logs:
                print_text("")
                copy_output(client, set_id, index)
            return
        view = client.call_set(set_id)
        failed = client.call_results(set_id, states=["failed"], limit=5).results
    io.show(view, show_set(view, failed))


def show_set(view: CallSetView, failed: Sequence[CallResult] = ()) -> str:
    """Draw one call set."""
    spec = view.spec
    ended = view.succeeded + view.failed + view.cancelled
    until = view.ended_at if view.ended_at is not None else time.time()
    text = facts(
        [
            ("set", view.id),
            ("function", spec.function),
            ("state", tell_state(view).word),
            (
                "calls",
                f"{ended} of {_count_text(view)} ended, {view.failed} failed, {view.cancelled} cancelled",
            ),
            ("cut short", view.cut),
            ("rate", rate_text(view)),
            ("time", split_span(until - view.created_at)),
            ("app", spec.app_name),
            ("queue", spec.queue or ""),
            ("owner", view.owner),
            ("model", spec.model or ""),
            ("gpus", str(spec.gpus or "")),
            ("time limit", _say_limit(view)),
        ]
    )
    for result in failed:
        text += f"\n{view.id}.{result.index}: {result.reason}"
    return text


def _say_limit(view: CallSetView) -> str:
    if not view.time_limit_source:
        return ""
    if view.time_limit_seconds is None:
        return f"none, by the {view.time_limit_source}"
    words = {"calls": "that of calls in its queue", "function": "its own"}
    source = words.get(view.time_limit_source, f"of the {view.time_limit_source}")
    return f"{split_span(view.time_limit_seconds)} for each call, {source}"


def show_call(call: CallView) -> str:
    """Draw one call: its state, its attempts that failed, its result."""
    text = facts(
        [
            ("call", f"{call.set}.{call.index}"),
            ("function", call.function),
            ("state", say_state(call.state, call.reason)),
            ("attempts", str(call.attempts)),
            ("executor", call.executor or ""),
        ]
    )
    for failure in call.failures:
        where = f" on {failure.host}" if failure.host else ""
        text += f"\nattempt {failure.attempt}{where}: {failure.cause or 'failed'}: {failure.reason}"
    if call.value:
        text += "\n" + value_text(call.value)
    return text


def value_text(value: str) -> str:
    """Return the JSON of a result as it is, or the traceback of an error."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    if isinstance(found, dict) and {"kind", "message"} <= found.keys():
        return str(found.get("traceback") or f"{found['kind']}: {found['message']}").rstrip()
    return value


@calls.command()
@SET
@click.option("--first", type=COUNT, default=0, help="From this index on.")
@click.option("--limit", type=POSITIVE, help="The most to print.")
@click.option("--failed", is_flag=True, help="Only calls that failed, with their errors.")
@talks
def results(io: CommandIO, name: str, first: int, limit: int | None, failed: bool) -> int:
    """Print the results of a set in the order of its calls, a line each, as they come.

    The exit code is 1 where a printed call did not succeed.

    \b
    Examples:
      holdfast calls results 06ch2v8wq1m4kz7d9x3t
      holdfast calls results @last --failed --json
    """
    bad = 0
    with io.client() as client:
        set_id = find_set(client, name)
        found = (
            _list_failed(client, set_id, first)
            if failed
            else client.each_result(set_id, first=first)
        )
        for result in itertools.islice(found, limit):
            bad += result.state != 1
            if io.as_json:
                io.show_json_line(as_plain(result))
            else:
                print_text(result_line(result))
    return int(bad > 0)


def _list_failed(client: Client, set_id: str, first: int) -> Any:
    while True:
        page = client.call_results(set_id, first=first, states=["failed"], limit=1000)
        yield from page.results
        if page.ended:
            return
        first = page.next


def as_plain(result: CallResult) -> dict[str, Any]:
    """Return one result as `--json` prints it."""
    return {
        "index": result.index,
        "state": STATES[result.state],
        "value": _read_value(result.value),
        "attempts": result.attempts,
        "reason": result.reason,
    }


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text or None


def result_line(result: CallResult) -> str:
    """Return one result as a line for a person."""
    if result.state == 1:
        return f"{result.index}\t{result.value}"
    return f"{result.index}\t{STATES[result.state]}: {result.reason}"


@calls.command()
@click.argument("names", metavar="SET[.INDEX]...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept with each call.")
@click.option("--hard", is_flag=True, help="End what runs at once, with its executor.")
@talks
def cancel(io: CommandIO, names: Sequence[str], reason: str, hard: bool) -> None:
    """Cancel call sets, or single calls: at once those that wait.

    A call that runs is told (`ctx.cancelled`); one that does not end in its grace is ended with its
    executor. --hard gives it no grace. Other calls of that executor run elsewhere, uncharged.

    \b
    Examples:
      holdfast calls cancel 06ch2v8wq1m4kz7d9x3t
      holdfast calls cancel 06ch2v8wq1m4kz7d9x3t.17 --hard --reason "wrong input"
    """
    views = []
    with io.client() as client:
        for word in names:
            name, index = read_call_name(word)
            indices = None if index is None else [index]
            views.append(client.cancel_calls(find_set(client, name), indices, reason, hard=hard))
    io.show(views, calls_table(views))


@calls.command()
@click.argument("name", metavar="SET[.INDEX]")
@click.option("--failed", is_flag=True, help="Only calls that failed, none that were cancelled.")
@talks
def retry(io: CommandIO, name: str, failed: bool) -> None:
    """Make failed and cancelled calls ready again, with fresh budgets.

    \b
    Examples:
      holdfast calls retry 06ch2v8wq1m4kz7d9x3t --failed
      holdfast calls retry 06ch2v8wq1m4kz7d9x3t.17
    """
    word, index = read_call_name(name)
    with io.client() as client:
        set_id = find_set(client, word)
        if index is not None or not failed:
            view = client.retry_calls(set_id, None if index is None else [index])
        else:
            numbers = [result.index for result in _list_failed(client, set_id, 0)]
            view = client.call_set(set_id)
            for at in range(0, len(numbers), RETRIED_AT_ONCE):
                view = client.retry_calls(set_id, numbers[at : at + RETRIED_AT_ONCE])
    io.show(view, calls_table([view]))


@calls.command()
@CALL
@click.option("--follow", "-f", is_flag=True, help="Go on until the call has ended.")
@click.option("--attempt", type=POSITIVE, help="The attempt. [default: the last]")
@click.option("--stream", type=click.Choice(["stdout", "stderr", "both"]), default="both")
@talks
def logs(io: CommandIO, name: str, **which: Any) -> None:
    """Print what one call printed: its stdout to stdout, its stderr to stderr, byte for byte.

    \b
    Examples:
      holdfast calls logs 06ch2v8wq1m4kz7d9x3t.17
      holdfast calls logs 06ch2v8wq1m4kz7d9x3t.17 --attempt 1 --stream stderr
      holdfast calls logs -f 06ch2v8wq1m4kz7d9x3t.17
    """
    word, index = read_call_name(name)
    if index is None:
        raise ValidationError(f"give the call too, as {word}.0: calls are numbered from 0")
    with io.client() as client:
        set_id = find_set(client, word)
        if io.as_json:
            for line in client.call_logs(set_id, index, **which):
                io.show_json_line(line)
            return
        copy_output(client, set_id, index, **which)


def copy_output(client: Client, set_id: str, index: int, **which: Any) -> None:
    """Write what a call printed to stdout and stderr."""
    missing = 0
    for line in client.call_logs(set_id, index, **which):
        missing += line.gap
        write_stream(line.stream, line.data)
    if missing:
        note(f"{count_of(missing, 'byte')} are not in the controller's copy (log_keep_mb)")


@calls.command()
@CALL
@talks
def why(io: CommandIO, name: str) -> None:
    """Say what holds a call up, and what to do about it.

    \b
    Example:
      holdfast calls why 06ch2v8wq1m4kz7d9x3t.17
    """
    word, index = read_call_name(name)
    if index is None:
        raise ValidationError(f"give the call too, as {word}.0: calls are numbered from 0")
    with io.client() as client:
        call = client.call_view(find_set(client, word), index)
    lines = [say_state(call.state, call.reason if call.state not in ("ready", "running") else "")]
    for each in call.why:
        if say_state(call.state, each.message) != lines[0]:
            lines.append(f"- {each.message}")
        if each.hint:
            lines.append(f"  {each.hint}")
    io.show({"call": name, "state": call.state, "lines": call.why}, "\n".join(lines))


@calls.command()
@click.argument("function", metavar="MODULE:FUNCTION")
@click.argument("arguments", metavar="[ARGUMENTS]", default="{}")
@click.option("--app", help="The app that hosts list. [default: of the module]")
@click.option("--queue", help="The queue. [default: gpu with --gpus, else cpu]")
@click.option("--project", help="The project. [default: default]")
@click.option("--gpus", type=COUNT, help="GPUs of its executor.")
@click.option("--model", help="The model that it runs with.")
@click.option("--host-label", "host_labels", multiple=True, metavar="K=V", help="Its hosts.")
@click.option("--time-limit", metavar="TIME", help="Time the call may take, as 90s or 2h.")
@click.option("--max-retries", type=COUNT, help="Retries after a failure.")
@add_options(*CODE_OPTIONS)
@click.option("--no-import", is_flag=True, help="Leave out what the function declares.")
@click.option("--no-wait", is_flag=True, help="Print the id of its set, and wait for nothing.")
@click.option("--timeout", metavar="TIME", help="How long to wait for the result, as 90s or 2h.")
@talks
def call(
    io: CommandIO,
    function: str,
    arguments: str,
    no_import: bool,
    no_wait: bool,
    timeout: str | None,
    **options: Any,
) -> int:
    """Call a function of an app and print its result as JSON; exit with 1 where it failed.

    ARGUMENTS is a JSON object of the function's parameters by name. The call has the options that the
    function declares, which its module here is imported for, and those of this command over them.
    With --workdir the folder goes along, and any host runs the function as it is there now.

    \b
    Examples:
      holdfast calls call mytasks:double '{"x": 3}'
      holdfast calls call mytasks:double '{"x": 3}' --workdir .
      holdfast calls call mytasks:render '{"prompt": "a fjord"}' --gpus 1
    """
    check_arguments(arguments)
    known = not no_import and ":" in function
    declared, folder = read_declared(function) if known else (None, None)
    flags = take_code_flags(options, folder)
    spec = make_spec(function, declared=declared, **options)
    seconds = None if timeout is None else read_seconds("--timeout", timeout)
    with io.client() as client:
        spec = bring_code(client, spec, flags)
        made = client.create_call_set(spec, [arguments], count=1)
        if no_wait:
            io.show(made, f"{made.id}.0")
            return 0
        result = wait_for(client, made.id, seconds)
        if result is None:
            raise TimeoutError(
                f"call {made.id}.0 has not ended after {timeout}; it goes on: "
                f"`holdfast calls why {made.id}.0` says where it is"
            )
    done = result.state == 1
    plain = {"call": f"{made.id}.0", **as_plain(result)}
    text = result.value if done else f"{STATES[result.state]}: {result.reason}"
    if not done and result.value:
        text += "\n" + value_text(result.value)
    io.show(plain, text)
    return 0 if done else 1
