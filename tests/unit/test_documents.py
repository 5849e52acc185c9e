"""Commands on the pages of the documents can be typed as they stand: each word of them exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from holdfast.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    )
    if page.parent.name != "decisions"  # these say what was so on their day
)
# A line of a block, after a prompt and variables; what stands between backticks; `$(…)`.
_LINE = re.compile(r"^\s*(?:\$ )?(?:\w+=\S+ )*(holdfast [a-z].*)$")
_INSIDE = re.compile(r"`(holdfast [a-z][^`]*)`|\$\((holdfast [^)]*)\)")
_ENDS = {"|", ">", ">>", "<", "&&", "||", ";", "&", "--"}


def list_commands(page: Path) -> Iterator[str]:
    """Return the commands of a page. A program's own lines (`holdfast up: ready`) are none."""
    for line in page.read_text().splitlines():
        found = [match[1] for match in [_LINE.match(line)] if match]
        found += [one or other for one, other in _INSIDE.findall(line)]
        yield from (command for command in found if not re.match(r"holdfast \w+: ", command))


def find_strangers(command: str) -> Iterator[str]:
    """Return the words of a command that name no command and no option of it."""
    try:
        words = shlex.split(re.sub(r"\s#.*$", "", command).replace("…", ""))[1:]
    except ValueError:
        return  # a quotation that goes on in the next line
    found: click.Command = cli
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        name = words[0].split("|")[0]
        under = found.get_command(click.Context(found), name)
        if under is None:
            if not name.isupper():  # as JOB in `checkpoints JOB`, which lists
                yield name
            return
        found, words = under, words[1:]
    options = {word for p in found.params for word in (*p.opts, *p.secondary_opts)}
    flags = {
        word
        for p in found.params
        if isinstance(p, click.Option) and p.is_flag
        for word in (*p.opts, *p.secondary_opts)
    }
    while words:
        word = words.pop(0)
        if word in _ENDS:
            return
        if not word.startswith("-") or word == "-":
            if not found.context_settings.get("allow_interspersed_args", True):
                return  # the job's own command
            continue
        if word[1:2] != "-" and len(word) > 2 and f"-{word[2:]}" in options:
            word = word[:2]  # short options in one word, as in `-it`
        name = word.partition("=")[0]
        if name not in options | {"--help", "-h", "--version"}:
            yield name
        elif name not in flags and "=" not in word and words and words[0] not in _ENDS:
            words.pop(0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    wrong = [(c, list(find_strangers(c))) for c in list_commands(page)]
    assert [(command, words) for command, words in wrong if words] == []


@pytest.mark.parametrize(
    ("command", "strangers"),
    [
        ("holdfast submitt -- true", ["submitt"]),
        ("holdfast submit --gpu 1 -- train --lr 3", ["--gpu"]),
        ("holdfast run --gpus 1 python train.py --lr 3", []),
        ("holdfast hosts drain|undrain HOST --reason TEXT", []),
        ("holdfast hosts drain HOST --why TEXT", ["--why"]),
        ("holdfast jobs --json | jq --raw-output .", []),
    ],
)
def test_strangers_are_found(command: str, strangers: list[str]) -> None:
    assert list(find_strangers(command)) == strangers


def test_the_pages_have_commands() -> None:
    assert sum(1 for page in PAGES for _ in list_commands(page)) > 200


def test_every_page_is_reached_from_the_front_page() -> None:
    """A guide that no page links to is not found by its reader."""
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        for target in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text()):
            linked = (page.parent / target).resolve()
            if "://" not in target and linked not in reached:
                assert linked.exists(), f"{page.name} links to {target}"
                waiting.append(linked)
    assert [
        str(page.relative_to(ROOT))
        for page in PAGES
        if page.is_relative_to(ROOT / "docs") and page not in reached
    ] == []
