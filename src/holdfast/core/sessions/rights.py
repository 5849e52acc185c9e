"""Decide which user may come into a task.

REACH-1  A user comes into own jobs with a submit token. Into the jobs of others a token comes only
         where it has `reach` of their project, which no role brings with it: a shell in another's
         job sees that user's secrets and acts as that user.
"""

from collections.abc import Sequence

import msgspec

ANY_PROJECT = "*"
CLOSED_LABEL = ("sessions", "off")
"""The label, and its value, of a host whose configuration has sessions switched off."""


class WishToEnter(msgspec.Struct, frozen=True, kw_only=True):
    """A user's wish to come into a task. may_submit: the token's role is submit or admin. of_a_job:
    the token is that of a running job. shared_process: the job runs calls of many users.
    switched_on: the setting `sessions` of the project."""

    user: str
    may_submit: bool
    reach: Sequence[str]
    of_a_job: bool
    job_id: str
    owner: str
    project: str
    shared_process: bool
    switched_on: bool


def find_refusal(entry: WishToEnter) -> tuple[str, str] | None:
    """Return the code and the sentence of the refusal of a user's wish; None where the user may
    come in (REACH-1)."""
    if entry.of_a_job:
        return "job_token", "a job's own token opens no sessions; use the token of its user"
    if not entry.switched_on:
        return (
            "sessions_off",
            f"sessions are switched off in project {entry.project}, or in the whole cluster; an admin "
            f"switches them on: `holdfast projects set {entry.project} sessions=true`, and "
            "`holdfast config set sessions=true` where the cluster has them off",
        )
    if ANY_PROJECT in entry.reach or entry.project in entry.reach:
        return None
    mine = entry.owner == entry.user and bool(entry.owner) and not entry.shared_process
    if mine and entry.may_submit:
        return None
    if mine:
        return "forbidden", "a session takes a token of the role submit; this one may only read"
    owner = entry.owner or "Holdfast itself"
    if entry.shared_process:
        owner = "every user of its queue, because it runs calls"
    return (
        "no_reach",
        f"job {entry.job_id} belongs to {owner}, and this token acts for {entry.user}: sessions in "
        f"the jobs of others take a token with reach of their project, which an admin makes: "
        f"`holdfast token create --role submit --reach {entry.project}`",
    )
