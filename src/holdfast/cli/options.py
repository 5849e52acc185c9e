"""Options: those that a command's own docstring tells of, and those that several commands share.

A parameter of a command is an option where the last paragraph of the docstring has a line about it:
`name: Help.`, or `name (FLAGS $VARIABLE METAVAR): Help.` where the option is more than `--name`. A
line that is too long goes on in the next, which is indented. The type and the default are the parameter's own.
"""

import builtins
import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import click

from holdfast.errors import ValidationError

COUNT, POSITIVE, SECONDS = (click.IntRange(0), click.IntRange(1), click.FloatRange(0))
Count = Annotated[int, COUNT]
Positive = Annotated[int, POSITIVE]
LABEL = click.option("--label", "labels", multiple=True, metavar="K=V", help="A label; repeatable.")
# An id, the beginning of one, a name, or @last: `jobs.find.find_job` reads it.
JOB = click.argument("job_id", metavar="JOB")
ME = "@me"  # the user that one's token acts for


_HINT = re.compile(r"(\w+)(?: \(([^()]+)\))?: (\S.*)")


class Hint(NamedTuple):
    """The line of a docstring about a parameter. words: the flags, the environment's variable and the
    metavar; "" for none of them."""

    words: str
    help: str


class _Names(dict[str, Any]):
    """The names that annotations use; a name that is imported for types alone means anything."""

    def __missing__(self, name: str) -> Any:
        return vars(builtins).get(name, Any)


def split_docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, Hint]]:
    """Return a docstring without its last paragraph, and what that says of the parameters `names`; or
    the whole docstring, where the last paragraph is about something else."""
    text = inspect.cleandoc(text)
    about, _, last = text.rpartition("\n\n")
    lines = [_HINT.fullmatch(" ".join(line.split())) for line in re.split(r"\n(?!\s)", last)]
    hints = {m[1]: Hint(m[2] or "", m[3]) for m in lines if m is not None and m[1] in names}
    return (about, hints) if len(hints) == len(lines) else (text, {})


def describe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that the docstring of a command tells of."""
    command.__doc__, add = read_described(inspect.unwrap(command))
    described: Callable[..., Any] = add(command)
    return described


def read_described(function: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """Return the docstring of a function without what it says of options, and the decorator that adds
    these options."""
    parameters = inspect.signature(function).parameters
    text, hints = split_docstring(function.__doc__ or "", parameters)
    names = _Names(vars(sys.modules[function.__module__]))
    types = get_type_hints(function, localns=names, include_extras=True) if hints else {}
    made = [
        make_option(name, types[name], hint, parameters[name].default)
        for name, hint in hints.items()
    ]
    return text, add_options(*made)


def make_option(
    name: str, kind: Any, hint: Hint, default: Any = inspect.Parameter.empty
) -> Callable[..., Any]:
    """Return the option of a parameter or a field of this type."""
    words = [word.removesuffix(",") for word in hint.words.split()]
    flags = [word for word in words if word.startswith("-")] or [f"--{name.replace('_', '-')}"]
    variable = next((word[1:] for word in words if word.startswith("$")), None)
    metavar = next((word for word in words if word[0] not in "-$"), None)
    optional = NoneType in get_args(kind)
    how = {"help": hint.help, "metavar": metavar, "envvar": variable, **_read_kind(kind)}
    if metavar in ("TIME", "SIZE"):
        how["type"] = str  # as people write it, with a unit
    if default is not inspect.Parameter.empty:
        how["default"] = default
    elif optional and "is_flag" in how:
        how["default"] = None
    elif not (optional or how.keys() & {"is_flag", "multiple"}):
        how["required"] = True
    return click.option(*flags, name, **how)


def _read_kind(kind: Any) -> dict[str, Any]:
    """Return what a type says of an option: sequences and mappings are given word by word, a type of
    click's own stands in `Annotated`, and what may be of several types is text."""
    if get_origin(kind) in (Union, UnionType):
        absent = ("NoneType", "UnsetType")
        kinds = [part for part in get_args(kind) if getattr(part, "__name__", "") not in absent]
        return _read_kind(kinds[0]) if len(kinds) == 1 else {"type": str}
    if get_origin(kind) in (Sequence, tuple, dict):
        return {**_read_kind(get_args(kind)[0]), "multiple": True}
    if get_origin(kind) is Annotated:
        own = kind.__metadata__[0]
        return {"type": own} if isinstance(own, click.ParamType) else _read_kind(kind.__origin__)
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if kind is bool:
        return {"is_flag": True}
    return {"type": str if issubclass(kind, str) else kind}


def options_of(
    struct: Any,
    names: str,
    words: Mapping[str, str] = MappingProxyType({}),
    fields: Mapping[str, str] = MappingProxyType({}),
) -> Callable[..., Any]:
    """Return a decorator that adds the options of a struct's fields, with the sentences of its
    docstring. A field that no option names is None.

    names: the options' parameters, in their order. words: the flags and the metavar of a parameter,
    where they are not those that its name and its unit say. fields: the field of a parameter, where
    it has another name.
    """
    _, hints = split_docstring(struct.__doc__, struct.__struct_fields__)
    types = get_type_hints(struct, include_extras=True)
    made = []
    for name in names.split():
        field = fields.get(name, name)
        unit = "TIME" if field.endswith("_seconds") else "SIZE" * field.endswith("_bytes")
        hint = Hint(words.get(name, unit), hints[field].help)
        made.append(make_option(name, types[field] | None, hint))
    return add_options(*made)


def add_options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds these options, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


OWNER = add_options(
    click.option("--owner", metavar="USER", help="Only what this user submitted."),
    click.option("--mine", is_flag=True, help="Only what your token's user submitted."),
)


def choose_owner(owner: str | None, mine: bool) -> str | None:
    """Return whose work is listed: that of --owner, or one's own with --mine; None for everybody's."""
    if mine and owner is not None:
        raise click.UsageError("--mine goes without --owner")
    return ME if mine else owner


def read_pairs(flag: str, pairs: Sequence[str], field: str = "labels") -> dict[str, str]:
    """Read the K=V words of a repeatable flag. Raises ValidationError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValidationError(f"{flag} {pair!r} is not K=V", field=field)
        found[name] = value
    return found


def read_seconds(flag: str, text: str, field: str | None = None) -> float:
    """Read a duration such as 90s or 2h. Raises ValidationError."""
    from holdfast.core.settings.resolve import parse_duration  # most commands read none

    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValidationError(f"{flag}: {error}", field=field or flag[2:]) from None


def read_since(text: str, now: float, flag: str = "--since") -> float:
    """Read a time that is over, as 2h ago or as a date; `now` is Unix seconds. Raises
    ValidationError."""
    from holdfast.client.specs import parse_start
    from holdfast.core.settings.resolve import parse_duration

    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return parse_start(text, now)
    except ValueError:
        raise ValidationError(
            f"{flag} {text!r} is no time; write 2h, 7d, or 2027-01-31T18:00", field="since"
        ) from None


def ask(question: str) -> None:
    """Ask the user on stderr. Raises ClickException unless the answer is yes."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise ValidationError("there was no answer; --yes goes on without the question") from None
    if not agreed:
        raise ValidationError("nothing was changed")
