"""`rules`: the operators' own rules of classification: show, check, try, set and delete them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.operate.resource import Columns, draw_columns, resource
from holdfast.cli.output import facts, note
from holdfast.client.synchronous import Client
from holdfast.core.causes import Cause
from holdfast.core.endings.rules import OUTDATED, OperatorRule, drop_rule, parse_rules
from holdfast.errors import NotFound, ValidationError

if TYPE_CHECKING:
    from holdfast.wire.api import RulesFinding, RulesView

_TAIL_CHARS = 16_384  # the part of a log that an agent sends


COLUMNS: Columns[OperatorRule] = {
    "RULE": lambda rule: rule.name,
    "WHEN": lambda rule: _when(rule),
    "CAUSE": lambda rule: str(rule.cause or "as found"),
    "AND": lambda rule: _and(rule) or "-",
}


def rules_table(found: Sequence[OperatorRule]) -> str:
    """Draw the table of `rules`."""
    return draw_columns(COLUMNS, found, elastic=1)


def _view_text(found: RulesView | str) -> str:
    """Draw the rules of a cluster, or give them as they were written."""
    if isinstance(found, str):
        return found.removesuffix("\n")
    nothing = "no rules of your own; the shipped ones apply"
    return rules_table(found.rules) if found.rules else nothing


def _rule_text(rule: OperatorRule) -> str:
    return facts(
        [
            ("rule", rule.name),
            ("when", _when(rule)),
            ("cause", str(rule.cause or "as found")),
            ("and", _and(rule)),
            ("says", rule.message),
        ]
    )


@resource("RULE", _view_text)
@click.option("--text", "as_text", is_flag=True, help="Print the rules as they were written.")
def rules(client: Client, as_text: bool) -> RulesView | str:
    """Show the cluster's own rules, which find the cause of a task's end, beside the shipped rules.

    A rule is a few lines of TOML. The first rule that matches applies; it cannot overrule a
    measurement (a broken GPU, the OOM counter), a watchdog's trip, or a cause that is never retried.

    \b
      [[rule]]
      name = "object-store-away"
      pattern = 'EndpointConnectionError'  # in each line of the log's tail
      exit_codes = [1]                       # and/or signals = ["SIGSEGV"]
      cause = "agent_transient"            # or never_retry, avoid_host = true
      message = "the object store could not be reached"

    \b
    Examples:
      holdfast rules
      holdfast rules check rules.toml
      holdfast rules try --exit-code 1 --log job.log --rules rules.toml
      holdfast rules set rules.toml
      holdfast rules delete object-store-away
    """
    view = client.rules()
    if view.problem:
        note(f"the rules are not in force, because this version cannot read them: {view.problem}")
    for name in view.outdated:
        note(f"the pattern of rule {name} {OUTDATED}")
    return view.text if as_text else view


@rules.add("show", _rule_text)
def show_rule(client: Client, name: str) -> OperatorRule:
    """Show one rule.

    \b
    Example:
      holdfast rules show object-store-away
    """
    found = [rule for rule in client.rules().rules if rule.name == name]
    if not found:
        raise NotFound(f"there is no rule {name!r}; `holdfast rules` lists them", field="rule")
    return found[0]


@rules.deletes()
def delete_rule(client: Client, name: str) -> None:
    """Delete one rule; the others and their comments stay as they were written.

    \b
    Example:
      holdfast rules delete object-store-away
    """
    client.set_rules(drop_rule(client.rules().text, name))


def _when(rule: OperatorRule) -> str:
    from holdfast.core.endings.classify import signal_name

    ends = [f"exit {code}" for code in rule.exit_codes] + [
        signal_name(number) for number in rule.signals
    ]
    parts = [f"/{rule.pattern}/" if rule.pattern is not None else "", " or ".join(ends)]
    return " and ".join(part for part in parts if part)


def _and(rule: OperatorRule) -> str:
    words = ["never retry"] * rule.never_retry + ["avoid the host"] * rule.avoid_host
    return ", ".join(words)


@rules.command("check")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: str, as_json: bool) -> None:
    """Check a file of rules, without a controller; a mistake is reported with its line.

    \b
    Example:
      holdfast rules check rules.toml
    """
    found = parse_rules(_read(file))
    CommandIO(as_json).show(list(found), rules_table(found) if found else "no rules")


@rules.command("set")
@click.argument("file", type=click.Path(allow_dash=True))
@talks
def set_rules(io: CommandIO, file: str) -> None:
    """Replace all rules by those of a file; an empty file removes all. A bad rule changes nothing.

    The new rules apply to every end from now on; earlier decisions stay.

    \b
    Examples:
      holdfast rules set rules.toml
      holdfast rules --text > rules.toml
    """
    with io.client() as client:
        view = client.set_rules(_read(file))
    io.show(view, rules_table(view.rules) if view.rules else "no rules of your own any more")


@rules.command("try")
@click.option("--exit-code", type=click.IntRange(1, 255), help="The exit code of the process.")
@click.option("--signal", "signal_", metavar="SIGNAL", help="Or the signal: a name or a number.")
@click.option(
    "--log",
    "log_file",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Its output (last 16 KiB).",
)
@click.option(
    "--rules",
    "rules_file",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Other rules to try.",
)
@talks
def try_rules(
    io: CommandIO,
    exit_code: int | None,
    signal_: str | None,
    log_file: str | None,
    rules_file: str | None,
) -> None:
    """Show the cause that a task's end would be given, with the rule and evidence.

    \b
    Examples:
      holdfast rules try --exit-code 1 --log job.log
      holdfast logs JOB | holdfast rules try --exit-code 1 --log -
    """
    if (exit_code is None) == (signal_ is None):
        raise click.UsageError("give either --exit-code or --signal")
    log = "" if log_file is None else _read(log_file).replace("\x00", "")[-_TAIL_CHARS:]
    text = None if rules_file is None else _read(rules_file)
    with io.client() as client:
        found = client.try_rules(
            exit_code=exit_code, signal=_read_signal(signal_), log=log, text=text
        )
    io.show(found, finding_text(found))


def finding_text(found: RulesFinding) -> str:
    """Write a finding for a person."""
    charged = {"never": "never retried", "nothing": "requeued at no charge"}.get(
        found.charged_to, f"charged to {found.charged_to}"
    )
    if found.cause == Cause.PROGRAM_ERROR:
        charged = "never retried, unless the attempt reported a new step or left a checkpoint"
    also = ["never retried, by the rule"] * found.never_retry + [
        "the next attempt avoids the host"
    ] * found.avoid_host
    evidence = ((f"  {name}", str(value)) for name, value in found.evidence.items())
    return facts(
        [
            ("cause", f"{found.cause} ({charged})"),
            ("rule", found.rule),
            ("says", found.message),
            ("also", "; ".join(also)),
            *evidence,
        ]
    )


def _read_signal(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else int(signal.Signals[text.upper()])
    except KeyError:
        raise click.UsageError(
            f"{text!r} is no signal; give a number or a name such as SIGSEGV"
        ) from None


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ValidationError(f"{file} cannot be read: {error.strerror}", field=file) from error
    return data.decode(errors="replace")
