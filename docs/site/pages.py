"""The pages that are made from the source: causes, error codes, and the references of the SDK and the
supervisor. `python -m docs.site.pages > docs/reference/codes.md` writes the page of all codes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast import errors, supervisor
from holdfast.cli.endings import exit_code_of
from holdfast.core import causes
from holdfast.core.causes import CHARGED_TO, Budget, Cause
from holdfast.core.endings.classify import MEASURED, UNMEASURED
from holdfast.core.endings.patterns import PULL, TEXT

PACKAGE = Path(holdfast.__file__).parent
CHARGES = {
    Budget.RETRIES: "the job's retries (`--max-retries`)",
    Budget.INFRA: "the infrastructure budget (`infra_cap`, 10)",
    Budget.WATCHDOG: "the watchdogs' budget (`watchdog_cap`, 3)",
    Budget.NOTHING: "nothing: the job is queued again",
    Budget.NEVER: "nothing, and the job does not run again by itself",
}


class Code(NamedTuple):
    """An error code: the HTTP status, the exit code of the command line, the sentences that are said
    with it ({…} stands for what differs), and what its class says."""

    code: str
    status: int
    exit_code: int
    sentences: tuple[str, ...]
    about: str


# ---- causes


def read_cause_texts() -> dict[str, str]:
    """Return the text below each cause in `core/causes.py`."""
    tree = ast.parse(inspect.getsource(causes))
    (listed,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Cause"]
    found: dict[str, str] = {}
    for before, after in zip(listed.body, listed.body[1:], strict=False):
        if isinstance(before, ast.Assign) and isinstance(after, ast.Expr):
            words = " ".join(str(ast.literal_eval(after.value)).split())
            found[str(ast.literal_eval(before.value))] = words
    return found


def render_cause(cause: Cause, text: str) -> str:
    """Return the page of a cause."""
    what, _, mend = text.partition(" Mend: ")
    group = next((g for g, listed in causes.GROUPS.items() if cause in listed), None)
    words = [
        f"# {cause}",
        what,
        f"**What to do:** {mend}",
        f"**Charged to** {CHARGES[CHARGED_TO[cause]]}.",
    ]
    if group is not None:
        words.append(f"`--retry-on {cause}` names it alone, `--retry-on {group}` with its likes.")
    trips = [d for d, c in causes.CAUSE_OF_TRIP.items() if c is cause]
    words += [f"Exit code {causes.EXIT_OF[dog].value}: the watchdog `{dog}`." for dog in trips]
    said = {f"log-{p.name}": p.sentence for p in TEXT} | {
        f"pull-{p.name}": p.sentence for p in PULL
    }
    rules = [r.name for r in (*MEASURED, *UNMEASURED) if r.cause is cause]
    if rules:
        rows = [f"| `{name}` | {said.get(name, '')} |" for name in dict.fromkeys(rules)]
        words.append(
            "\n".join(["## Rules that find it", "", "| rule | it says |", "|---|---|", *rows])
        )
    words.append("How a cause is found: [why did it fail?](../guides/classification.md). What follows: "
                 "[retries](../guides/retries.md).")  # fmt: skip
    return "\n\n".join(words) + "\n"


# ---- error codes


def list_codes() -> list[Code]:
    """Return every error code of the package, by name."""
    sentences: dict[str, dict[str, None]] = {}
    kinds: dict[str, type[errors.HoldfastError]] = {}
    for kind in _list_kinds():
        kinds.setdefault(kind.code, kind)
    by_name = {kind.__name__: kind for kind in _list_kinds()}
    for code, name, sentence in _find_uses():
        kinds.setdefault(code, by_name.get(name, errors.HoldfastError))
        if sentence:
            sentences.setdefault(code, {})[sentence] = None
    return [
        Code(
            code,
            kind.status,
            exit_code_of(kind.__new__(kind)) or 1,
            tuple(sentences.get(code, {})),
            " ".join((kind.__doc__ or "").split()) if kind.code == code else "",
        )
        for code, kind in sorted(kinds.items())
    ]


def _list_kinds() -> list[type[errors.HoldfastError]]:
    """Return the errors of these modules alone, so that the page is the same whatever else was imported."""
    names = ("errors", "blobs.interface", "client.locate", "providers.interface", "functions.failures", "webhooks",
             "supervisor.rosters.failures", "supervisor.policy.selection", "controller.graphql.endpoint")  # fmt: skip
    modules = {importlib.import_module(f"holdfast.{name}").__name__ for name in names}
    found, waiting = [], [errors.HoldfastError]
    while waiting:
        kind = waiting.pop(0)
        found.append(kind)
        waiting += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ in modules]


def _find_uses() -> Iterator[tuple[str, str, str]]:
    """Yield (code, name of the error, sentence) of each place that makes an error with a code."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if 'code="' not in text:
            continue
        tree = ast.parse(text)
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            texts = list_texts(tree.body) | list_texts(ast.walk(function))
            for call in ast.walk(function):
                if not isinstance(call, ast.Call) or not call.args:
                    continue
                for keyword in call.keywords:
                    value = keyword.value
                    if keyword.arg == "code" and isinstance(value, ast.Constant):
                        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
                        if name[:1].isupper():
                            yield str(value.value), name, _read_sentence(call.args[0], texts)


def list_texts(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """Return what names stand for: a variable for its value, a function for what it returns."""
    found: dict[str, ast.expr] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            found |= {t.id: node.value for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.FunctionDef) and isinstance(last := node.body[-1], ast.Return):
            found |= {node.name: last.value} if last.value else {}
    return found


def _read_sentence(node: ast.expr, texts: dict[str, ast.expr]) -> str:
    """Return a message as it is written in the source, with … where it differs."""
    if isinstance(node, ast.Call):
        node = node.func
    name = getattr(node, "id", getattr(node, "attr", ""))
    node = texts.get(name, node) if isinstance(node, (ast.Name, ast.Attribute)) else node
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
        return re.sub(r"\s+", " ", "".join(map(str, parts)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _read_sentence(node.left, texts) + _read_sentence(node.right, texts)
    return ""


def render_code(code: Code) -> str:
    """Return the page of an error code."""
    words = [f"# {code.code}"]
    words += [code.about] if code.about else []
    if code.sentences:
        words += ["It is said as one of these (… stands for what differs):"]
        words += ["\n".join(f"- {_plain(sentence)}" for sentence in code.sentences)]
    words += [
        f"Over HTTP: status {code.status}, in the field `code` of the problem. A command ends with exit code "
        f"{code.exit_code}. In Python: `error.code == \"{code.code}\"`."
    ]  # fmt: skip
    return "\n\n".join(words) + "\n"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


def render_codes(link: str = "{}") -> str:
    """Return the page of all causes and codes. link: how a name is written, as `[{0}]({0}.md)`."""
    texts = read_cause_texts()
    rows = [
        "# Causes and error codes",
        "Made from the source (`core/causes.py`, the errors) by `python -m docs.site.pages`. In the site each has a "
        "page; `holdfast docs CODE` opens it.",
        "## Causes",
        "\n".join([
            "| cause | charged to | what happened, and what to do |", "|---|---|---|",
            *(f"| {link.format(f'{c}')} | {CHARGED_TO[c]} | {texts[c]} |" for c in Cause),
        ]),
        "## Error codes",
        "Each error has a code that scripts match on: over HTTP in the field `code`, with `--json` on stderr, in "
        "Python as `error.code`.",
        "\n".join([
            "| code | status | exit | said |", "|---|---|---|---|",
            *(f"| {link.format(c.code)} | {c.status} | {c.exit_code} | {_plain(_shorten(c))} |" for c in list_codes()),
        ]),
    ]  # fmt: skip
    return "\n\n".join(rows) + "\n"


def _shorten(code: Code) -> str:
    said = code.about or (code.sentences[0] if code.sentences else "")
    return textwrap.shorten(said, 160, placeholder=" …")


# ---- references from docstrings


def render_sdk() -> str:
    """Return the reference of the SDK."""
    words = ["# The SDK", "Made from the docstrings. `AsyncClient` has the methods of `Client` as coroutines. "
             "[From Python](../guides/python.md) shows them at work."]  # fmt: skip
    listed = sorted(n for n in holdfast.__all__ if n not in ("AsyncClient",))
    return (
        "\n\n".join([*words, *(_render(name, getattr(holdfast, name)) for name in listed)]) + "\n"
    )


def render_supervisor() -> str:
    """Return the reference of the supervisor library."""
    words = ["# The supervisor, name by name", "Made from the docstrings; [the guide](../guides/supervisor.md) "
             "explains, [the reference](supervisor.md) orders them."]  # fmt: skip
    listed = sorted(supervisor.__all__)
    return "\n\n".join([*words, *(_render(n, getattr(supervisor, n)) for n in listed)]) + "\n"


def _render(name: str, value: Any) -> str:
    words = [f"## {name}", *_sign(name, value), _doc(value)]
    if inspect.isclass(value):
        for key, member in inspect.getmembers(value):
            own = not key.startswith("_") and not hasattr(Exception, key)
            if own and callable(member) and inspect.getdoc(member):
                words += [f"### {name}.{key}", *_sign(key, member), _doc(member)]
    return "\n\n".join(word for word in words if word)


def _sign(name: str, value: Any) -> list[str]:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return []
    bare = [
        p.replace(
            annotation=p.annotation if isinstance(p.annotation, str) else inspect.Parameter.empty
        )
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    text = re.sub(r"'([^']*)'(?=[,)=]| =)", r"\1", f"{name}{inspect.Signature(bare)}")
    text = re.sub(r"<[^>]*>", "…", text)
    return [
        f"```python\n{textwrap.fill(text, 100, subsequent_indent='    ', break_long_words=False)}\n```"
    ]


def _doc(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    if not isinstance(value, type) and not callable(value):
        return ""
    return re.sub(r"(?<!`)<([^>]*)>", r"`<\1>`", text).replace("*", "\\*")


if __name__ == "__main__":
    print(render_codes("`{}`"), end="")
