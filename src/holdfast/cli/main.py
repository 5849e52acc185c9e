"""`holdfast`: the table of commands, and the end of every failure.

A command's module is imported when the command runs. Ordinary words are read without click, because
it costs as much as starting Python; `tree` has the rest.
"""

import contextlib
import gc
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from holdfast.cli.declare import Command
from holdfast.cli.endings import EXIT_INTERRUPTED, EXIT_USAGE, exit_code_of, is_clicks, show_error
from holdfast.cli.output import print_line

PROGRAM = "holdfast"
_COMPLETION = "_HOLDFAST_COMPLETE"  # a shell asks click for the words that may follow
# name → (module, help). The command is an attribute of the module; the help keeps this order.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up.up", "Start everything here: database, controller, one agent."),
    "run": ("jobs.run", "Run a command as a job, follow it, and exit with its code."),
    "submit": ("jobs.submit", "Submit a job and print its id."),
    "jobs": ("jobs.jobs", "List jobs."),
    "show": ("jobs.show", "Show one job: state, attempts, and why."),
    "logs": ("jobs.logs", "Print a job's output; -f follows it."),
    "attempts": ("jobs.attempts", "List a job's attempts, with cause and reason."),
    "why": ("jobs.show", "Say what holds a job up, and what to do about it."),
    "cancel": ("jobs.cancel", "Cancel jobs."),
    "retry": ("jobs.cancel", "Queue failed or cancelled jobs again."),
    "workflow": ("flow.workflow", "Run workflows: graphs of jobs, calls and questions."),
    "tasks": ("flow.tasks", "List calls of Python functions; call, cancel, retry."),
    "schedules": ("series.schedules", "Submit jobs at set times: cron and intervals."),
    "checkpoints": ("jobs.checkpoints", "List, fetch or forget a job's saved files."),
    "events": ("operate.events", "Show what happened; -f follows."),
    "hosts": ("operate.hosts", "List hosts; drain, quarantine or end them."),
    "pools": ("operate.pools", "List pools of hosts; make, scale, pause and end them."),
    "projects": ("operate.projects", "List projects: quotas, retry defaults; change them."),
    "retries": ("operate.retries", "Show holds on retries; hold or release them."),
    "queues": ("operate.queues", "List queues; change, pause and resume them."),
    "rules": ("operate.rules", "Show, check, try and set your rules of classification."),
    "config": ("operate.config", "Show every setting and the source of its value."),
    "webhooks": ("operate.webhooks", "Send events to URLs: signed, in order, repeated."),
    "token": ("operate.token", "Make, list and revoke tokens."),
    "beat": ("jobs.beat", "From inside a job: say that the work moved forward."),
    "checkpoint": ("jobs.checkpoints", "From inside a job: save for the next attempt."),
    "server": ("up.server", "Run the controller alone."),
    "agent": ("up.agent", "Run an agent that joins a controller."),
    "supervise": ("supervise", "Run a policy script over hosts that are replaced singly."),
    "host-manager": ("host_manager", "Make this machine a host of a policy script."),
    "db": ("operate.db", "Migrate the database, or show its version."),
    "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    "version": ("version", "Print the version."),
}
# Commands that Holdfast's own jobs run.
HIDDEN: dict[str, str] = {"supervised-member": "supervise"}

# Commands that ask a controller and keep nothing open: their process ends without taking down its
# modules one by one, which costs more than starting Python.
PLAIN = (
    *("jobs", "show", "why", "logs", "attempts", "cancel", "retry", "submit", "events", "hosts"),
    *("pools", "projects", "queues", "retries", "tasks", "version", "workflow", "schedules"),
)
# Objects that such a command makes before garbage is looked for: most end before, with none.
PLAIN_OBJECTS = 100_000


def load_command(name: str) -> Command | None:
    """Import a command; None where there is none of this name."""
    module = HIDDEN.get(name) or COMMANDS.get(name, ("",))[0]
    if not module:
        return None
    gc.disable()  # what an import makes lives to the end: a collection would find nothing
    try:
        found = getattr(importlib.import_module(f"holdfast.cli.{module}"), name.replace("-", "_"))
    finally:
        gc.enable()
    assert isinstance(found, Command)
    return found


def _import_records() -> None:
    """Import msgspec without `typing_extensions`, which costs half of what starting Python does.

    msgspec takes from it only what `typing` has in every Python that Holdfast runs on.
    """
    unknown = "typing_extensions" not in sys.modules
    if unknown:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # the import fails then
    try:
        import msgspec  # noqa: F401  # kept in memory
    finally:
        if unknown:
            del sys.modules["typing_extensions"]


def run_words(words: list[str]) -> Any:
    """Run one command and return what it returns; words that are click's to read go there."""
    if words and words[0] in PLAIN:
        _import_records()
    command = load_command(words[0]) if words and _COMPLETION not in os.environ else None
    given = None if command is None else command.read(words[1:])
    if command is None or given is None:
        from holdfast.cli.tree import cli

        cli.main(words, prog_name=PROGRAM)
    try:
        return command.function(**given)
    except KeyboardInterrupt:
        print_line("", err=True)  # the terminal shows ^C
        raise


def guard(run: Callable[[], Any], words: list[str]) -> int:
    """Run a command and return the exit code of its end; a failure is told in plain lines."""
    own = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in own
    try:
        result = run()
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return 141
    except Exception as error:
        return _tell(error, words, as_json=as_json)


def _tell(error: Any, words: list[str], *, as_json: bool) -> int:
    """Tell of an expected failure and return its exit code. Raises the error if it is a bug."""
    if is_clicks(error, "Abort"):
        return EXIT_INTERRUPTED
    code = exit_code_of(error)
    if is_clicks(error):
        code = error.exit_code if error.exit_code > 1 else EXIT_USAGE
    if code is None:
        raise error
    show_error(error, as_json)
    if is_clicks(error, "UsageError") and not as_json:
        path = f"{PROGRAM} {words[0]}" if error.ctx is None else error.ctx.command_path
        print_line(f"See `{path} --help`.", err=True)
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return code


def _drop_output() -> None:
    """Discard Python's buffer, whose flush at the exit would fail on the same pipe or disk again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def open_standard_streams() -> None:
    """Open closed standard streams to nothing, so that no file or socket takes their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # of a letter the terminal's encoding lacks


def main() -> NoReturn:
    """Entry point of the `holdfast` program."""
    open_standard_streams()
    words = sys.argv[1:]
    plain = words[:1] and words[0] in PLAIN
    if plain:
        gc.set_threshold(PLAIN_OBJECTS)
    try:
        sys.exit(guard(lambda: run_words(words), words))
    except SystemExit as end:
        if plain and isinstance(end.code, int):
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # `guard` has told of it
                    stream.flush()
            os._exit(end.code)
        raise
