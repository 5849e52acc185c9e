"""`login` and `logout`: which server is meant from now on, and with which token."""

from __future__ import annotations

import os
import re
import sys
from urllib.parse import urlsplit

import click

from holdfast.cli.command_io import CommandIO, prints, read_token_file
from holdfast.cli.output import note
from holdfast.cli.where.asking import ask_controller
from holdfast.cli.where.keeping import change_contexts
from holdfast.client.contexts.file import LOCAL, CliContext, CliContexts, check_name, read_contexts
from holdfast.client.locate import ControllerPlace, locate
from holdfast.core.doctor.facts import ControllerFacts
from holdfast.errors import Conflict, HoldfastError, Unauthorized, Unavailable, ValidationError
from holdfast.http.addresses import read_address, split_urls
from holdfast.wire.bearer import is_token

_TOKEN_BYTES = 4096


@click.command()
@click.argument("url")
@click.option(
    "--context", "name", metavar="NAME", help="The server's name here. [default: its host's name]"
)
@click.option("--token-stdin", is_flag=True, help="Read the token from standard input.")
@click.option("--token-file", metavar="FILE", help="Read the token from a file.")
@click.option("--ca-file", metavar="FILE", help="PEM of the authority that signed its certificate.")
@prints
def login(
    io: CommandIO,
    url: str,
    name: str | None,
    token_stdin: bool,
    token_file: str | None,
    ca_file: str | None,
) -> None:
    """Log in to the controller at URL: try the token there, keep both under a name, and use that
    server from now on.

    The token is asked for, unless an option says where it is; it never stands in the command
    itself, because every user of a machine can list commands. Several addresses of one controller
    are given with commas between them. What is kept is in `~/.config/holdfast/contexts.json`
    (0600).

    \b
    Examples:
      holdfast login https://holdfast.example
      holdfast login https://holdfast.example --context prod --token-stdin < token
      holdfast login https://a.example,https://b.example --ca-file ca.pem
    """
    if token_stdin and token_file:
        raise click.UsageError("--token-stdin and --token-file are two ways to say one thing")
    urls = _check_urls(url)
    name = check_name(name or _name_host(urls[0]))
    ca_file = os.path.abspath(os.path.expanduser(ca_file)) if ca_file else None
    # Nothing is asked for that could not be kept.
    read_contexts(os.environ).put(name, CliContext(urls=urls))
    for each in urls:
        if each.startswith("http://") and not read_address(each).is_loopback:
            note(
                f"{each} is plain http to another machine: every network between sees the token. "
                "Use https, or a tunnel to 127.0.0.1"
            )
    token = _read_token(urls[0], token_stdin=token_stdin, token_file=token_file)
    place = locate(",".join(urls), token, environ={"HOLDFAST_CA_FILE": ca_file} if ca_file else {})
    facts = _try_token(place)
    kept = CliContext(urls=urls, token=token, ca_file=ca_file)
    change_contexts(os.environ, lambda contexts: contexts.put(name, kept))
    for dead, why in facts.dead_urls.items():
        note(f"the address {dead} does not answer now: {why}")
    _warn_of_variables(name)
    value = {"context": name, "urls": urls, "user": facts.user, "role": facts.role}
    io.show(
        value,
        f"logged in to {facts.url} as {facts.user} ({facts.role}); it is the context {name}, which "
        "is the current one now",
    )


def _check_urls(text: str) -> tuple[str, ...]:
    urls = split_urls(text)
    for url in urls:
        if urlsplit(url).username is not None:
            raise ValidationError(
                "the URL holds a name or a password, which would be kept and shown with it; leave "
                "them out, the token is asked for",
                field="url",
            )
    return locate(text, "t", environ={}).urls


def _name_host(url: str) -> str:
    """Return a name for the server at a URL, made of its host's name so that a context may have
    it."""
    host = urlsplit(url).hostname or ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", host).strip("-.") or "server"


def _read_token(url: str, *, token_stdin: bool, token_file: str | None) -> str:
    if token_file:
        token = read_token_file(os.path.expanduser(token_file))
    elif token_stdin:
        token = sys.stdin.read(_TOKEN_BYTES).strip()
    elif sys.stdin.isatty():
        token = click.prompt(f"Token for {url}", hide_input=True, err=True).strip()
    else:
        raise click.UsageError(
            "there is no terminal to ask for the token: give --token-stdin or --token-file"
        )
    if not token:
        raise ValidationError("the token is empty; `holdfast token create` makes one")
    if not is_token(token):
        raise ValidationError(
            "this is no token: it has a space, a line break or another character that no token has"
        )
    return token


def _try_token(place: ControllerPlace) -> ControllerFacts:
    """Ask the controller with the token, and return its facts. Raises the error that forbids
    keeping the token."""
    facts = ask_controller(place)
    if facts.error_code == "join_token":
        raise Unauthorized(
            "this is a join token, with which `holdfast agent` makes a machine a host; log in with "
            "one of --role read, submit or admin"
        )
    if facts.error_kind == "refused":
        raise Unauthorized(
            f"{facts.url} does not take this token ({facts.error}). Ask an admin there for one of "
            "`holdfast token create`; nothing was kept"
        )
    if facts.error_kind == "unreachable":
        raise Unavailable(f"{facts.error} Nothing was kept.", code="unreachable")
    if facts.error:
        raise HoldfastError(f"{facts.url} is no controller: {facts.error} Nothing was kept.")
    return facts


def _warn_of_variables(name: str) -> None:
    for variable in ("HOLDFAST_URL", "HOLDFAST_CONTEXT"):
        if os.environ.get(variable):
            note(
                f"{variable} is set and goes before the current context; unset it, or write "
                f"`holdfast -c {name} …`"
            )


@click.command()
@click.argument("name", required=False)
@prints
def logout(io: CommandIO, name: str | None) -> None:
    """Forget a server and its token: that of NAME, or of the current context.

    The token itself stays good; an admin ends it with `holdfast token revoke`.

    \b
    Examples:
      holdfast logout
      holdfast logout prod
    """
    given = name or click.get_current_context().find_root().params.get("context")
    gone = ""

    def forget(contexts: CliContexts) -> CliContexts:
        nonlocal gone
        gone = given or os.environ.get("HOLDFAST_CONTEXT") or contexts.current
        if gone == LOCAL:
            raise Conflict(
                "you are logged in nowhere: the current context is the `up` of this machine, whose "
                "token is in its data folder",
                code="not_logged_in",
            )
        return contexts.without(gone)

    left = change_contexts(os.environ, forget)
    value = {"context": gone, "current": left.current}
    text = f"logged out of {gone}; the current context is {left.current}"
    io.show(value, text)
