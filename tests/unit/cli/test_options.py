"""Options said once: by a command's own parameters and docstring, or by the fields of a struct."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner

from holdfast.cli.command_io import CommandIO, prints
from holdfast.cli.commands import COMMANDS
from holdfast.cli.jobs.submit import submit
from holdfast.cli.main import cli
from holdfast.cli.options import Positive, options_of, split_docstring
from holdfast.client.specs import SHORT_NAMES
from holdfast.core.retry import RetryFields
from holdfast.core.spec import JobSpec


@click.command()
@prints
def paint(
    face: CommandIO,
    shade: Literal["dark", "light"] = "dark",
    *,
    coats: Positive | None,
    rooms: Sequence[str],
    dry: bool,
    at: str,
    level: Annotated[int, click.IntRange(0, 9)] = 3,
    keep: bool = True,
) -> None:
    """Paint rooms.

    \b
    Example:
      paint --at 3

    shade: How dark it is.
    coats (-c, --coats N): How many coats,
        one on the other.
    rooms (--room NAME): A room; repeatable.
    dry: Wait until it is dry.
    at (--at WHEN): The time.
    level: How even.
    keep (--keep/--drop): Keep the pots.
    """
    face.show_json([shade, coats, rooms, dry, at, level, keep])


def run(command: click.Command, *words: str) -> Any:
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    return msgspec.json.decode(done.output)


def test_a_parameter_is_an_option_of_its_own_type_and_default() -> None:
    assert run(paint, "--at", "3") == ["dark", None, [], False, "3", 3, True]
    words = "--at 3 --shade light -c 2 --room a --room b --dry --level 9 --drop".split()
    assert run(paint, *words) == ["light", 2, ["a", "b"], True, "3", 9, False]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("", "Missing option '--at'"),
        ("--at 3 --shade red", "'red' is not one of 'dark', 'light'"),
        ("--at 3 -c 0", "0 is not in the range"),
        ("--at 3 --level 10", "10 is not in the range"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(words: str, sentence: str) -> None:
    done = CliRunner().invoke(paint, words.split())
    assert done.exit_code == 2
    assert sentence in done.output


def test_the_help_has_each_line_once() -> None:
    text = CliRunner().invoke(paint, ["--help"]).output
    assert " ".join(text.split()).count("How many coats, one on the other.") == 1
    assert "-c, --coats N" in text
    assert "coats (-c" not in text


def test_a_paragraph_about_anything_else_stays_in_the_help() -> None:
    text = "Do it.\n\nNote: nothing.\nshade: How dark."
    assert split_docstring(text, ["shade"]) == (text, {})


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A wish.

    size_bytes: How large.
    wait_seconds: How long.
    colours: A colour; repeatable.
    loud: Say it loudly.
    shade: How dark.
    """

    size_bytes: int = 0
    wait_seconds: Annotated[float, msgspec.Meta(ge=0)] | Literal["off"] | None = None
    colours: tuple[str, ...] = ()
    loud: bool = False
    shade: Literal["dark", "light"] = "dark"


def test_the_fields_of_a_struct_are_options_with_its_sentences() -> None:
    @click.command()
    @options_of(
        Wish,
        "size wait colours loud shade",
        words={"colours": "--colour NAME"},
        fields={"size": "size_bytes", "wait": "wait_seconds"},
    )
    def wish(**given: Any) -> None:
        click.echo(msgspec.json.encode(given).decode())

    nothing = {"size": None, "wait": None, "colours": [], "loud": None, "shade": None}
    assert run(wish) == nothing
    words = "--size 4G --wait off --colour a --colour b --loud --shade light".split()
    assert run(wish, *words) == {
        "size": "4G",
        "wait": "off",
        "colours": ["a", "b"],
        "loud": True,
        "shade": "light",
    }
    text = CliRunner().invoke(wish, ["--help"]).output
    assert re.search(r"--wait TIME +How long\.", text)
    assert re.search(r"--size SIZE +How large\.", text)


def list_commands() -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]  # plain words stand for the typed value in a test
        assert command is not None
        yield name, command
        for sub, each in getattr(command, "commands", {}).items():
            yield f"{name} {sub}", each


def test_no_line_about_an_option_is_left_in_a_help() -> None:
    """A line that names no parameter, as after a renaming, would make no option."""
    hint = re.compile(r"^[a-z_]+( \([^)]*\))?: [A-Z]", re.M)
    left = {
        name: found[0]
        for name, command in list_commands()
        if (found := hint.search(command.help or ""))
    }
    assert left == {}


def test_every_option_says_what_it_is() -> None:
    """But for a few, whose names say all."""
    silent = {
        f"{name} {option.opts[-1]}"
        for name, command in list_commands()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    }
    assert silent == {
        "logs --stream",
        "grep --stream",
        "calls logs --stream",
        "token create --role",
        "workflow list --limit",
        "server --port",
        "server --log-format",
    }


NO_OPTION = {
    "argv": "the words after --",
    "code": "--workdir and --git",
    "stdin": "a file, whose digest the spec has",
    "terminal": "run -it",
    "attended": "notebook",
    "supervised": "supervise",
    "straggler_seconds": "a setting of queues",
    "standstill_seconds": "a setting of queues",
    "parent": "Holdfast writes it",
    "executor": "Holdfast writes it",
    "retry": "the options of RetryFields",
}


def test_each_field_of_a_job_has_an_option_or_a_reason() -> None:
    options = {SHORT_NAMES.get(str(p.name), str(p.name)) for p in submit.params}
    assert {*JobSpec.__struct_fields__} - options == NO_OPTION.keys() - {"stdin"}
    _, sentences = split_docstring(RetryFields.__doc__ or "", RetryFields.__struct_fields__)
    shown = {p.help for p in submit.params if isinstance(p, click.Option)}
    assert {hint.help for hint in sentences.values()} <= shown
