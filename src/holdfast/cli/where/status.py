"""The command `status`: the server in use, the user there, whether the server works, and how to
mend it where it does not."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.output import age, facts, print_text
from holdfast.cli.where.asking import find_controller
from holdfast.cli.where.findings import choose_exit, draw_findings
from holdfast.client.contexts.file import LOCAL, read_contexts
from holdfast.client.locate import ControllerPlace
from holdfast.core.doctor.controller import judge_controller
from holdfast.core.doctor.facts import ControllerFacts
from holdfast.core.doctor.findings import DoctorFinding, Level


@click.command()
@talks
def status(io: CommandIO) -> int:
    """Say which server commands go to, as which user, and what is wrong with it. The exit code is 0 only
    where it works: 5 where the token is refused, 6 where no server answers.

    \b
    Examples:
      holdfast status
      holdfast -c prod status --json
    """
    found, place = find_controller(io.url, io.read_token(), io.context)
    findings = list(judge_controller(found, datetime.now(UTC)))
    code = choose_exit(found, findings)
    if io.as_json:
        io.show_json(_as_value(found, place, findings, works=code == 0))
    else:
        print_text(_draw(found, place))
        told = [finding for finding in findings if finding.level is not Level.OK]
        if told:
            print_text("\n" + draw_findings(told))
    return code


def _as_value(
    found: ControllerFacts,
    place: ControllerPlace | None,
    findings: list[DoctorFinding],
    *,
    works: bool,
) -> dict[str, Any]:
    return {
        "works": works,
        "url": found.url or None,
        "urls": list(place.urls) if place else [],
        "from": place.source if place else None,
        "context": (place.context or None) if place else None,
        "user": found.user or None,
        "role": found.role or None,
        "token": {
            "id": found.token_id or None,
            "name": found.token_name or None,
            "from": found.token_source or None,
            "expires_at": found.expires_at,
        },
        "versions": {"server": found.version or None, "client": found.client_version},
        "clock_seconds": found.clock_seconds,
        "error": {"code": found.error_code, "detail": found.error} if found.error else None,
        "findings": msgspec.to_builtins(findings),
    }


def _draw(found: ControllerFacts, place: ControllerPlace | None) -> str:
    if place is None:
        return facts([("server", "none"), ("client", found.client_version)])
    others = [url for url in place.urls if url != found.url]
    name = f" {found.token_name!r}" if found.token_name else ""
    until = f", expires {age(found.expires_at)}" if found.expires_at else ""
    contexts = read_contexts(os.environ) if place.context not in ("", LOCAL) else None
    current = contexts is not None and contexts.current == place.context
    clock = ""
    if found.clock_seconds is not None:
        ahead = "ahead of" if found.clock_seconds >= 0 else "behind"
        clock = f"{abs(found.clock_seconds):.2f} s {ahead} the server's"
    return facts(
        [
            ("server", f"{found.url}{'' if not found.error else ' (does not work)'}"),
            ("also at", ", ".join(others)),
            ("from", place.source),
            ("context", f"{place.context}{' (current)' if current else ''}" if contexts else ""),
            ("user", found.user and f"{found.user}, role {found.role}"),
            (
                "token",
                found.token_id and f"{found.token_id}{name}, from {found.token_source}{until}",
            ),
            ("trusts", place.ca_file or ""),
            ("versions", f"server {found.version or 'unknown'}, client {found.client_version}"),
            ("clock", clock),
        ]
    )
