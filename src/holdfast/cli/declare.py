"""Commands as values: what a command takes, kept plainly until click has to be told of it.

Importing click costs as much as starting Python. So the ordinary words of a command are read here,
exactly as click reads them, and everything else is left to click: groups, help, completion, each
parameter of a kind that is not plain, and each word that is not understood, with its message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Choice:
    """One of a few words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words


class NumberRange:
    """A number within bounds, which belong to it."""

    def __init__(
        self, kind: type[int | float], least: float | None = None, most: float | None = None
    ) -> None:
        self.kind, self.least, self.most = kind, least, most


_PLAIN_OPTION = {"type", "multiple", "is_flag", "default", "metavar", "help", "required"}
_PLAIN_ARGUMENT = {"type", "nargs", "default", "metavar", "required"}
_STOPS_AT_ARGUMENT = {"allow_interspersed_args": False}


class _Unknown(Exception):
    """Words that are click's to read."""


class Parameter:
    """An option or an argument, in the words that click's own decorators take."""

    def __init__(self, is_option: bool, names: tuple[str, ...], given: dict[str, Any]) -> None:
        self.is_option, self._names, self.given = is_option, names, given

    @property
    def is_plain(self) -> bool:
        """Whether its words are read here."""
        guessed = self.given.get("type") is None  # by click, from the default
        return self.given.keys() <= (_PLAIN_OPTION if self.is_option else _PLAIN_ARGUMENT) and (
            self.is_flag or not guessed or isinstance(self.given.get("default"), str | None)
        )

    @property
    def key(self) -> str:
        """The name of the function's argument."""
        chosen = next((name for name in self._names if name.isidentifier()), None)
        if chosen is not None:
            return chosen
        first = max(self._names, key=lambda name: name.startswith("--")).partition("/")[0]
        return first.lstrip("-").replace("-", "_").lower()

    @property
    def flags(self) -> dict[str, bool]:
        """The words that set it, and whether each says yes."""
        pairs = (name.partition("/") for name in self._names if not name.isidentifier())
        return {word: on for yes, _, no in pairs for word, on in ((yes, True), (no, False)) if word}

    @property
    def is_flag(self) -> bool:
        """Whether its word alone says it."""
        return bool(self.given.get("is_flag")) or any("/" in name for name in self._names)

    @property
    def default(self) -> Any:
        """Its value where it is not given."""
        if self.given.get("multiple") or self.given.get("nargs") == -1:
            return ()
        return self.given.get("default", False if self.is_flag else None)

    @property
    def must_be_given(self) -> bool:
        """Whether its absence is an error."""
        implied = not self.is_option and self.given.get("nargs") != -1 and self.default is None
        return bool(self.given.get("required", implied))

    def read(self, word: str) -> Any:
        """Return its value. Raises _Unknown for a word that click would refuse."""
        kind = self.given.get("type")
        if kind is None:
            return word
        if isinstance(kind, Choice) and word in kind.words:
            return word
        if kind in (int, float):
            kind = NumberRange(kind)
        if isinstance(kind, NumberRange):
            try:
                number = kind.kind(word)
            except ValueError:
                raise _Unknown from None
            if (kind.least is None or number >= kind.least) and (
                kind.most is None or number <= kind.most
            ):
                return number
        raise _Unknown

    def tell_click(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare it to click, as its decorators do."""
        import click

        given, kind = dict(self.given), self.given.get("type")
        if isinstance(kind, Choice):
            given["type"] = click.Choice(kind.words)
        elif isinstance(kind, NumberRange):
            bounded = click.IntRange if kind.kind is int else click.FloatRange
            given["type"] = bounded(kind.least, kind.most)  # type: ignore[arg-type]  # of its own kind
        if self.is_option:
            return click.option(*self._names, **given)(function)
        return click.argument(*self._names, **given)(function)


def _declare(is_option: bool, names: tuple[str, ...], given: dict[str, Any]) -> Decorator:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        vars(function).setdefault("declared", []).insert(0, Parameter(is_option, names, given))
        return function

    return add


def option(*names: str, **given: Any) -> Decorator:
    """Declare an option, as `click.option` does."""
    return _declare(True, names, given)


def argument(name: str, **given: Any) -> Decorator:
    """Declare an argument, as `click.argument` does."""
    return _declare(False, (name,), given)


class Command:
    """A function and what it takes; of a group also the commands under it."""

    def __init__(
        self, function: Callable[..., Any], name: str | None, given: dict[str, Any], *, group: bool
    ) -> None:
        self.function, self._name, self._given = function, name, given
        self._parameters: list[Parameter] = vars(function).pop("declared", [])
        self._under: list[Command] | None = [] if group else None

    def command(self, name: str | None = None, **given: Any) -> Callable[..., Command]:
        """Declare a command of this group."""

        def add(function: Callable[..., Any]) -> Command:
            made = Command(function, name, given, group=False)
            self.add_command(made)
            return made

        return add

    def add_command(self, made: Command) -> None:
        """Put a command into this group."""
        assert self._under is not None
        self._under.append(made)

    @cached_property
    def click(self) -> click.Command:
        """The same for click."""
        import click

        function = self.function
        for parameter in reversed(self._parameters):
            function = parameter.tell_click(function)
        make: Any = click.command if self._under is None else click.group
        made: Any = make(self._name, **self._given)(function)
        for command in self._under or ():
            made.add_command(command.click)
        found: click.Command = made
        return found

    def read(self, words: Sequence[str]) -> dict[str, Any] | None:
        """Return what to call the function with; None for words that are click's to read."""
        context = self._given.get("context_settings")
        plain = self._given.keys() <= {"context_settings", "hidden"} and context in (
            None,
            _STOPS_AT_ARGUMENT,
        )
        if self._under is not None or not plain or not all(p.is_plain for p in self._parameters):
            return None
        try:
            options, rest = self._read_options(words, stops=context is not None)
            return options | self._read_arguments(rest)
        except _Unknown:
            return None

    def _read_options(
        self, words: Sequence[str], *, stops: bool
    ) -> tuple[dict[str, Any], list[str]]:
        options = [parameter for parameter in self._parameters if parameter.is_option]
        by_word = {word: (p, on) for p in options for word, on in p.flags.items()}
        found = {parameter.key: parameter.default for parameter in options}
        missing = {parameter.key for parameter in options if parameter.must_be_given}
        left, rest = list(reversed(words)), []
        while left:
            word = left.pop()
            if word == "--":
                break
            if not word.startswith("-") or word == "-":
                rest.append(word)
                if stops:
                    break
                continue
            name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            if name not in by_word:
                raise _Unknown
            chosen, on = by_word[name]
            if chosen.is_flag:
                if equals:
                    raise _Unknown
                found[chosen.key] = on
                continue
            if not equals:
                if not left or left[-1].startswith("-"):
                    raise _Unknown
                value = left.pop()
            read = chosen.read(value)
            found[chosen.key] = (*found[chosen.key], read) if chosen.given.get("multiple") else read
            missing.discard(chosen.key)
        if missing:
            raise _Unknown
        return found, rest + left[::-1]

    def _read_arguments(self, words: list[str]) -> dict[str, Any]:
        arguments = [parameter for parameter in self._parameters if not parameter.is_option]
        if len(arguments) == 1 and arguments[0].given.get("nargs") == -1:
            only = arguments[0]
            if only.must_be_given and not words:
                raise _Unknown
            return {only.key: tuple(only.read(word) for word in words)}
        least = sum(parameter.must_be_given for parameter in arguments)
        single = all(parameter.given.get("nargs", 1) == 1 for parameter in arguments)
        if not single or not least <= len(words) <= len(arguments):
            raise _Unknown
        read = {p.key: p.read(word) for p, word in zip(arguments, words, strict=False)}
        return {p.key: p.default for p in arguments} | read


def command(name: str | None = None, **given: Any) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command, as `click.command` does."""
    return lambda function: Command(function, name, given, group=False)


def group(**given: Any) -> Callable[[Callable[..., Any]], Command]:
    """Declare a group of commands, as `click.group` does."""
    return lambda function: Command(function, None, given, group=True)


def pass_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a group's function the context, as `click.pass_context` does."""

    @wraps(function)
    def with_context(*given: Any, **named: Any) -> Any:
        import click

        return function(click.get_current_context(), *given, **named)

    return with_context


def usage_error(message: str) -> Exception:
    """Return click's error of words that do not go together."""
    import click

    return click.UsageError(message)
