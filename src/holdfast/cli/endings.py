"""The documented exit codes, and the one or two plain lines on stderr that go with a failure."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from holdfast import errors
from holdfast.cli import foreign
from holdfast.cli.commands import PROGRAM
from holdfast.cli.extras import find_docs
from holdfast.cli.output import note, print_line

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_CONFLICT = 4
EXIT_UNAUTHORIZED = 5
EXIT_UNREACHABLE = 6
EXIT_QUOTA = 7
EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141

_CODES: tuple[tuple[type[errors.HoldfastError], int], ...] = (
    (errors.ValidationError, EXIT_USAGE),
    (errors.TooLarge, EXIT_USAGE),
    (errors.NotFound, EXIT_NOT_FOUND),
    (errors.Conflict, EXIT_CONFLICT),
    (errors.QuotaExceeded, EXIT_QUOTA),
    (errors.Unauthorized, EXIT_UNAUTHORIZED),
    (errors.Forbidden, EXIT_UNAUTHORIZED),
    (errors.Unavailable, EXIT_UNREACHABLE),
)


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of an expected error; None for a bug, which deserves its traceback."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, (errors.HoldfastError, OSError, TimeoutError)):
        return EXIT_FAILED
    return None


def _say(error: BaseException) -> str:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        answer = _answer_foreign(error, error.ctx)
        if answer:
            return f"{error.message.rstrip('.')}. {answer}."
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _answer_foreign(error: click.UsageError, context: click.Context) -> str:
    """Return the sentence that answers a word of another scheduler, "" for any other mistake."""
    if isinstance(error, click.NoSuchOption):
        flags = [flag for param in context.command.params for flag in param.opts]
        return foreign.answer_flag(error.option_name, flags)
    word = getattr(error, "command_name", None)  # click 8.4 and newer
    if word is None or not isinstance(context.command, click.Group):
        return ""
    known = context.command.list_commands(context)
    return foreign.answer_verb(word, context.command_path, known)


def show_error(error: BaseException, as_json: bool) -> None:
    """Print an error on stderr; with `--json` as an RFC 9457 problem."""
    message = _say(error)
    if not as_json:
        field = getattr(error, "field", None)
        note(message + (f" ({field})" if field and str(field) not in message else ""))
        if isinstance(error, errors.HoldfastError) and sys.stderr.isatty() and find_docs():
            note(f"more: holdfast docs {error.code}")
        return
    problem: dict[str, object] = {"type": "about:blank", "title": type(error).__name__}
    problem |= {"status": 500, "code": "error", "detail": message}
    if isinstance(error, errors.HoldfastError):
        problem |= {"status": error.status, "code": error.code}
        if error.field is not None:
            problem["field"] = error.field
    elif isinstance(error, click.ClickException):
        problem |= {"title": "Usage", "status": 400, "code": "usage"}
    sys.stderr.write(json.dumps(problem) + "\n")
    sys.stderr.flush()


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
        drop_output()
        return EXIT_NO_READER
    except Exception as error:
        return _tell(error, as_json=as_json)


def _tell(error: Exception, *, as_json: bool) -> int:
    """Tell of an expected failure and return its exit code. Raises the error if it is a bug."""
    if isinstance(error, click.Abort):
        return EXIT_INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:  # a group by itself
        print_line(_say(error))
        return EXIT_OK
    code = exit_code_of(error)
    if isinstance(error, click.ClickException):
        code = error.exit_code if error.exit_code > 1 else EXIT_USAGE
    if code is None:
        raise error
    show_error(error, as_json)
    if isinstance(error, click.UsageError) and not as_json:
        path = PROGRAM if error.ctx is None else error.ctx.command_path
        print_line(f"See `{path} --help`.", err=True)
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()
    return code


def drop_output() -> None:
    """Discard Python's buffer, whose flush at the exit would fail on the same pipe or disk again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
