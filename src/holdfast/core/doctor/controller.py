"""Judge what a client found at the controller's address."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from holdfast.core.doctor.facts import ControllerFacts
from holdfast.core.doctor.findings import DoctorFinding, ok, problem, warning
from holdfast.version import name_install

CLOCK_SECONDS = 5.0
"""The difference of clocks that the health checks of hosts report, too."""
EXPIRY_DAYS = 3

_START = (
    "Look whether `holdfast up` or `holdfast server` runs there, and whether a firewall, a proxy or "
    "a VPN stands between"
)
_LOGIN = "Run `holdfast login URL` with a token of `holdfast token create`"
_AUTHORITY = (
    "Name the PEM file of its authority: `holdfast login URL --ca-file FILE`, or HOLDFAST_CA_FILE"
)


def judge_controller(
    facts: ControllerFacts, now: datetime, *, needed: bool = True
) -> Iterator[DoctorFinding]:
    """Yield findings about the controller, the good and the bad ones. now: this machine's clock.
    needed: False where a machine needs no setting that names a controller, as a host does not."""
    if facts.error_kind == "no_address":
        sentence, _, mend = facts.error.partition(". ")
        say = problem if needed else warning
        yield say("controller", sentence, mend)
        return
    for url, why in facts.dead_urls.items():
        yield warning("controller", f"the address {url} does not answer: {why}", _START)
    if facts.plain:
        yield warning(
            "controller",
            f"{facts.url} is plain http to another machine, so every network between sees the token",
            "Put TLS before the controller, and log in to its https address",
        )
    if facts.error_kind == "refused":
        why = f" (it was found in {facts.token_source})" if facts.token_source else ""
        yield problem("token", facts.error + why, _LOGIN)
        return
    if facts.error:
        tls = "certificate" in facts.error.lower()
        sentence = facts.error.partition(" Is `holdfast up`")[0]
        yield problem("controller", sentence, _AUTHORITY if tls else _START)
        return
    yield ok("controller", f"{facts.url} answers, from {facts.source}")
    for said in facts.problems:
        yield problem(said.part, said.sentence, said.mend)
    yield from _judge_token(facts, now)
    yield from judge_clock_difference(facts)
    yield from _judge_versions(facts)


def _judge_token(facts: ControllerFacts, now: datetime) -> Iterator[DoctorFinding]:
    name = f" {facts.token_name!r}" if facts.token_name else ""
    said = f"the token{name} acts for {facts.user} with role {facts.role}"
    left = facts.expires_at - now if facts.expires_at else None
    if left is not None and left < timedelta(days=EXPIRY_DAYS):
        hours = max(0, int(left.total_seconds() // 3600))
        yield warning("token", f"{said}, and expires in {hours} h", _LOGIN)
    elif facts.role == "read":
        yield warning(
            "token",
            f"{said}, so it lists and shows but submits nothing",
            "Ask an admin for one of `holdfast token create --role submit`, if you want to submit",
        )
    else:
        yield ok("token", said)


def judge_clock_difference(facts: ControllerFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about the difference of the two clocks. A difference that the answer's own
    time may explain is none."""
    if facts.clock_seconds is None:
        return
    far = abs(facts.clock_seconds) - facts.clock_error_seconds > CLOCK_SECONDS
    ahead = "ahead of" if facts.clock_seconds >= 0 else "behind"
    said = f"this clock is {abs(facts.clock_seconds):.1f} s {ahead} the controller's"
    if far:
        yield warning(
            "clock",
            said,
            "Turn time synchronisation on, here or there: `timedatectl set-ntp true`, or chrony",
        )
    else:
        yield ok("clock", said)


def _judge_versions(facts: ControllerFacts) -> Iterator[DoctorFinding]:
    here, there = facts.client_version, facts.version
    if not there:
        yield warning(
            "versions",
            f"the controller does not say its version, and this client is {here}",
            "Upgrade the controller",
        )
    elif here != there:
        yield warning(
            "versions",
            f"this client is {here}, and the controller is {there}",
            f"Install the controller's: {name_install(version=there)}",
        )
    else:
        yield ok("versions", f"client and controller are {here}")
