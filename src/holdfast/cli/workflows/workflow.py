"""`workflow`: run workflows, follow them as trees, cancel, restart and answer them."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.code.workdir import UNSENT, send_folder, take_workdir
from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.jobs.submit import place_here
from holdfast.cli.options import OWNER, choose_owner
from holdfast.cli.output import age, facts, paint, print_line, print_text, say_state, table
from holdfast.cli.workflows.tree import MAX_LINES, draw_mermaid, draw_run, list_changes
from holdfast.client.workflows.artifacts import list_artifacts
from holdfast.core.ids import ID_PATTERN, PREFIX_PATTERN, ends_id
from holdfast.core.words import count_of
from holdfast.errors import NotFound, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.workflows.records import NodeRecord, RunRecord
    from holdfast.core.workflows.values import WorkflowSpec
    from holdfast.wire.workflows import NodeView, NodeWhy, RunView

RUN = click.argument("run_id", metavar="RUN")
LAST = "@last"
LOOK_SECONDS = 0.5
CLEAR = "\x1b[H\x1b[J"


@click.group()
def workflow() -> None:
    """Run workflows: graphs of jobs, calls and questions.

    \b
    Examples:
      holdfast workflow run nightly.toml
      holdfast workflow show @last --watch
      holdfast workflow answer @last publish yes
      holdfast workflow restart @last
    """


@workflow.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--detach", is_flag=True, help="Print the run's id and do not wait for its end.")
@click.option("--out-dir", default="", help="A folder that all hosts see, for the run's files.")
@talks
def run(io: CommandIO, file: Path, detach: bool, out_dir: str) -> int:
    """Run the workflow in a TOML file and draw it until it has ended; exit 1 unless it succeeded.

    \b
    Examples:
      holdfast workflow run nightly.toml
      holdfast workflow run nightly.toml --detach
    """
    with io.client() as client:
        view = client.submit_workflow(_read(file, out_dir, client))
        if detach:
            io.show(view, view.id)
            return 0
        view = _watch(io, client, view.id)
        if io.as_json:
            io.show_json(view)
    return 0 if view.state.value == "succeeded" else 1


def _read(file: Path, out_dir: str = "", client: Client | None = None) -> WorkflowSpec:
    """Read a workflow's file. Its jobs run in this folder, as those of `submit` do, where they
    name none and the client's controller is on this machine; the folders that they take along
    (`workdir`) are sent by it."""
    from holdfast.client.workflows.files import read_workflow

    def settle(fields: dict[str, Any]) -> None:
        workdir = take_workdir(fields, {})
        if client is None:
            fields |= {} if workdir is None else {"code": UNSENT}
            return
        if workdir is not None:
            fields["code"] = send_folder(client, workdir, fields.get("project") or "default").code
        if "task" not in fields:
            place_here(fields, client.place, os.environ)

    spec = read_workflow(file, settle)
    return msgspec.structs.replace(spec, out_dir=str(Path(out_dir).resolve())) if out_dir else spec


@workflow.command()
@RUN
@click.option("--watch", is_flag=True, help="Draw it again as it changes, until it has ended.")
@click.option("--node", metavar="NODE", help="One node: what it does, its result, its folder.")
@talks
def show(io: CommandIO, run_id: str, watch: bool, node: str | None) -> None:
    """Show a run as a tree with the states of its nodes.

    \b
    Examples:
      holdfast workflow show 06ch2v8wq1m4kz7d9x3t
      holdfast workflow show @last --watch
      holdfast workflow show @last --node decode
    """
    with io.client() as client:
        run_id = find_run(client, run_id)
        if node is not None:
            found = client.workflow_node(run_id, node)
            io.show(found, _node_text(found))
        elif watch:
            _watch(io, client, run_id)
        else:
            view, nodes = client.workflow(run_id), client.workflow_nodes(run_id)
            both = {"run": view, "nodes": nodes}
            io.show(both, draw_run(view, nodes, datetime.now(UTC)))


def _watch(io: CommandIO, client: Client, run_id: str) -> RunView:
    """Draw a run until it has ended: in place on a terminal, else once at the end, with a line on
    stderr for each change before it."""
    on_screen = sys.stdout.isatty() and not io.as_json
    told: dict[int, str] = {}
    counts: dict[str, int] = {}
    while True:
        view = client.workflow(run_id)
        over = view.state.terminal
        if not on_screen and view.counts != counts:
            nodes = client.workflow_nodes(run_id) if view.nodes <= MAX_LINES else ()
            for line in list_changes(view, nodes, told):
                print_line(line, err=True)
            counts = view.counts
        if (on_screen or over) and not io.as_json:
            text = draw_run(view, client.workflow_nodes(run_id), datetime.now(UTC))
            if on_screen:
                click.echo(CLEAR, nl=False)
            print_text(text)
        if over:
            return view
        time.sleep(LOOK_SECONDS)


def _node_text(node: NodeView) -> str:
    result = "" if node.result is None else msgspec.json.encode(node.result).decode()
    return facts(
        [
            ("node", node.name),
            ("kind", node.kind.value),
            ("state", paint(node.state.value)),
            ("reason", node.reason),
            ("job" if node.kind.value == "job" else "calls", node.ref or ""),
            ("waits for", count_of(node.waiting_on, "node") if node.waiting_on else ""),
            ("result", result[:2000]),
            ("folder", node.out_dir),
            ("asks", node.spec.ask.prompt if node.spec.ask else ""),
            ("choices", ", ".join(node.spec.ask.choices) if node.spec.ask else ""),
        ]
    )


@workflow.command("list")
@click.option("--state", "states", multiple=True, help="Only runs in this state; repeatable.")
@click.option("--name", help="Only runs of this workflow.")
@click.option("--project", help="Only runs of this project.")
@OWNER
@click.option("--limit", type=click.IntRange(1, 1000), default=20)
@talks
def list_runs(
    io: CommandIO,
    states: Sequence[str],
    name: str | None,
    project: str | None,
    limit: int,
    **whose: Any,
) -> None:
    """List runs, newest first.

    \b
    Example:
      holdfast workflow list --state running
    """
    with io.client() as client:
        about = {"name": name, "project": project, "owner": choose_owner(**whose)}
        found = client.workflows(states=states, **about, page_size=limit)
        rows = list(itertools.islice(found, limit))
    nothing = "no runs. Start one with `holdfast workflow run FILE`"
    io.show(rows, _table(rows) if rows else nothing)


def _table(rows: Sequence[RunRecord]) -> str:
    headers = ("RUN", "WORKFLOW", "STATE", "NODES", "AGE", "REASON")
    return table(
        headers,
        [
            (
                row.id,
                row.name,
                paint(row.state.value),
                f"{row.nodes - row.unended}/{row.nodes}",
                age(row.created_at),
                row.reason,
            )
            for row in rows
        ],
    )


@workflow.command()
@RUN
@click.option("--reason", default="", help="Kept with the run.")
@click.option(
    "--hard",
    is_flag=True,
    help="End what runs at once: jobs without TERM, calls with their executors.",
)
@talks
def cancel(io: CommandIO, run_id: str, reason: str, hard: bool) -> None:
    """Cancel a run: what waits at once; jobs that run get TERM and their grace, and calls are told.

    \b
    Example:
      holdfast workflow cancel @last --reason "wrong data"
    """
    with io.client() as client:
        view = client.cancel_workflow(find_run(client, run_id), reason, hard=hard)
    io.show(view, f"{view.id}  {say_state(view.state.value, view.reason)}")


@workflow.command()
@RUN
@click.option("--from", "origins", multiple=True, metavar="NODE",
              help="Run this node again with all that follows from it; repeatable.")  # fmt: skip
@click.option("--reason", default="", help="Kept with the run.")
@talks
def restart(io: CommandIO, run_id: str, origins: Sequence[str], reason: str) -> None:
    """Run again what did not succeed; finished results are used again.

    A failed job goes on from its checkpoints with fresh budgets; of calls, those that failed run
    again.

    \b
    Examples:
      holdfast workflow restart @last
      holdfast workflow restart @last --from decode
    """
    with io.client() as client:
        view = client.restart_workflow(find_run(client, run_id), reason, origins=origins)
    again = count_of(view.unended, "node")
    io.show(view, f"{view.id}  {paint(view.state.value)}: {again} to run")


@workflow.command()
@RUN
@click.argument("node", metavar="NODE")
@click.argument("answer", metavar="ANSWER")
@talks
def answer(io: CommandIO, run_id: str, node: str, answer: str) -> None:
    """Answer a node's question.

    \b
    Example:
      holdfast workflow answer @last publish yes
    """
    with io.client() as client:
        found = client.answer_node(find_run(client, run_id), node, answer)
    io.show(found, f"{found.name}  {say_state(found.state.value, found.reason)}")


@workflow.command()
@RUN
@click.argument("node", metavar="NODE")
@talks
def why(io: CommandIO, run_id: str, node: str) -> None:
    """Say what holds a node up, and what to do about it.

    \b
    Example:
      holdfast workflow why @last publish
    """
    with io.client() as client:
        found = client.why_node(find_run(client, run_id), node)
    io.show(found, _why_text(found))


def _why_text(found: NodeWhy) -> str:
    lines = [say_state(found.state, found.summary)]
    for line in found.lines:
        lines += [f"- {line.message}"] if line.message != found.summary else []
        lines += [f"  {line.hint}"] if line.hint else []
    return "\n".join(lines)


@workflow.command()
@RUN
@talks
def artifacts(io: CommandIO, run_id: str) -> None:
    """List the files that a run's nodes wrote, where its folder can be seen from here.

    \b
    Example:
      holdfast workflow artifacts @last
    """
    with io.client() as client:
        view = client.workflow(find_run(client, run_id))
    found = list_artifacts(view)
    rows = [(item.node, item.path, str(item.bytes)) for item in found]
    nothing = f"no files in {view.out_dir}" if view.out_dir else "the run has no out_dir"
    io.show(found, table(("NODE", "FILE", "BYTES"), rows, elastic=1) if rows else nothing)


@workflow.command()
@click.argument("what", metavar="RUN|FILE")
@talks
def mermaid(io: CommandIO, what: str) -> None:
    """Print a run, or the workflow in a file, as a Mermaid diagram.

    \b
    Examples:
      holdfast workflow mermaid @last
      holdfast workflow mermaid nightly.toml
    """
    if Path(what).suffix:
        nodes = _preview(_read(Path(what)))
    else:
        with io.client() as client:
            nodes = client.workflow_nodes(find_run(client, what))
    io.show(nodes, draw_mermaid(nodes))


def _preview(spec: WorkflowSpec) -> list[NodeRecord]:
    from holdfast.core.workflows.check import check_workflow
    from holdfast.core.workflows.records import NodeRecord
    from holdfast.core.workflows.values import NodeState

    above = check_workflow(spec).parents
    return [
        NodeRecord(run="", number=number, name=node.name, kind=node.kind, state=NodeState.WAITING,
                   parents=tuple(above[number]))
        for number, node in enumerate(spec.nodes)
    ]  # fmt: skip


def find_run(client: Client, word: str) -> str:
    """Return the id of the run that `word` names: an id, the beginning or the end of one of the newest
    runs' ids, a workflow's name (its newest run), or @last.

    Raises:
        NotFound: there is no such run.
        ValidationError: the word is empty.
    """
    if not word:
        raise ValidationError("name a run: its id, its workflow's name, or @last")
    if ID_PATTERN.fullmatch(word):
        return word
    found = client.workflows(name=None if word == LAST else word, page_size=1)
    newest = next(iter(found), None)
    if newest is None and PREFIX_PATTERN.fullmatch(word):
        recent = [run.id for run in itertools.islice(client.workflows(page_size=100), 100)]
        begun = [one for one in recent if one.startswith(word)]
        ids = begun or [one for one in recent if ends_id(word) and one.endswith(word)]
        if len(ids) > 1:
            raise ValidationError(f"{word!r} names {len(ids)} runs; give more of the id")
        if ids:
            return ids[0]
    if newest is None:
        what = "no run yet" if word == LAST else f"no run of a workflow {word!r}"
        raise NotFound(f"there is {what}; `holdfast workflow list` lists them")
    return newest.id
