"""Words of other schedulers are answered with Holdfast's own, never with a guess by letters."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from holdfast.cli import foreign
from holdfast.cli.commands import COMMANDS
from holdfast.cli.jobs.submit import submit
from holdfast.cli.main import LazyGroup, cli


def test_each_answer_names_a_command_that_is_there() -> None:
    for word, name in foreign.COMMAND_OF.items():
        assert word not in COMMANDS, f"{word} is a command of ours"
        command, *verb = name.split()
        assert command in COMMANDS
        if verb:
            group = LazyGroup().get_command(click.Context(cli), command)
            assert isinstance(group, click.Group)
            assert verb[0] in group.commands


def test_each_flag_that_is_named_is_one_of_ours() -> None:
    ours = {flag for param in submit.params for flag in param.opts} | {"--follow", "--json"}
    assert set(foreign.FLAG_OF.values()) <= ours
    assert not ours.intersection(foreign.FLAG_OF)


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("stop", "`holdfast cancel`"), ("sbatch", "`holdfast submit`"), ("nodes", "`holdfast hosts`"),
        ("squeue", "`holdfast jobs`"), ("get", "`holdfast jobs`"), ("ps", "`holdfast jobs`"),
        ("kill", "`holdfast cancel`"), ("help", "`holdfast submit --help`"), ("cancl", "`holdfast cancel`"),
    ],
)  # fmt: skip
def test_a_habit_is_answered(word: str, named: str) -> None:
    assert named in foreign.answer_command(word, COMMANDS)


@pytest.mark.parametrize("word", ["xyz", "aws", "kubectl", "toppings"])
def test_a_word_that_nobody_knows_gets_no_guess(word: str) -> None:
    assert foreign.answer_command(word, COMMANDS) == ""


def test_a_flag_and_a_verb_are_answered_on_the_command_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for words, named in [
        (("submit", "--time", "1h", "--", "true"), "--time-limit"),
        (("submit", "--partition=gpu", "--", "true"), "--queue"),
        (("submit", "--gpus", "all", "--", "true"), "holdfast hosts"),
        (("queues", "add", "x"), "`holdfast queues set`"),
        (("pools", "rm", "x"), "`holdfast pools delete`"),
    ]:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        assert ended.value.code == 2
        assert named in capfd.readouterr().err


def list_helps(command: click.Command, name: str, above: click.Context | None) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=above, max_content_width=80)
    yield command.get_help(context)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from list_helps(found, each, context)


def test_each_help_fits_a_terminal_of_eighty_columns() -> None:
    wide = [line for text in list_helps(cli, "holdfast", None) for line in text.splitlines()]
    assert [line for line in wide if len(line) > 80] == []
