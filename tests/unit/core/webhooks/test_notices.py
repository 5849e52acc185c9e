"""What people are told of a job, and the addresses through which they may be told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.records import EventRecord
from holdfast.core.webhooks.notice_urls import SERVICES, name_service
from holdfast.core.webhooks.notices import (
    DEFAULT_KINDS,
    NotedJob,
    NoticeKind,
    list_moments,
    read_wish,
    read_wishes,
    write_notice,
)
from holdfast.core.webhooks.values import Subscription
from holdfast.errors import ValidationError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOOK = Subscription(
    webhook_id="h", cursor="", events=(), project=None, room=9, name="ops", service="Slack"
)


def job(*wishes: str, **fields: Any) -> NotedJob:
    plain: dict[str, Any] = {
        "id": "j", "name": "train", "project": "vision", "queue": "gpu", "state": "running", "reason": "why", "attempt": 1,
        "labels": {}, "wishes": wishes,
    }  # fmt: skip
    return NotedJob(**plain | fields)


def event(kind: str, **data: Any) -> EventRecord:
    return EventRecord(id="e", at=NOW, kind=kind, job_id="j", message="the reason", data=data)


def test_a_wish_names_a_target_and_what_it_is_told() -> None:
    assert read_wish("ops").kinds == DEFAULT_KINDS
    wish = read_wish("ops:end,waits=10m")
    assert (wish.kinds, wish.waits_seconds) == ({NoticeKind.END, NoticeKind.WAITS}, 600)


@given(st.text(max_size=40))
def test_a_text_is_a_wish_or_is_refused_in_words(text: str) -> None:
    refused, wish = None, None
    try:
        wish = read_wish(text)
    except ValidationError as error:
        refused = error
    if wish is not None:
        assert wish.kinds
        assert (NoticeKind.WAITS in wish.kinds) is (wish.waits_seconds is not None)
    if refused is not None:
        assert refused.field == "notify"
        assert "TARGET:KIND" in refused.message


def test_the_jobs_own_wish_is_over_its_projects() -> None:
    found = read_wishes(("ops:end",), "ops:stall me")
    assert found["ops"].kinds == {NoticeKind.END}
    assert found["me"].kinds == DEFAULT_KINDS


@pytest.mark.parametrize(
    ("kind", "data", "wish", "is_told"),
    [
        ("job.failed", {}, "ops:end", True), ("job.failed", {}, "ops:failure", True), ("job.failed", {}, "ops:stall", False),
        ("job.succeeded", {}, "ops:end", True), ("job.succeeded", {}, "ops:failure", False),
        ("job.cancelled", {}, "ops", True), ("job.requeued", {"charged_to": "retries"}, "ops", True),
        ("job.requeued", {"charged_to": "infra"}, "ops:failure", True), ("job.requeued", {"charged_to": "nothing"}, "ops", False),
        ("job.requeued", {"charged_to": "watchdog"}, "ops", False), ("job.requeued", {"charged_to": "watchdog"}, "ops:failure", True),
        ("task.tripped", {"watchdog": "stall"}, "ops", True), ("task.tripped", {"watchdog": "time_limit"}, "ops", False),
        ("task.still", {}, "ops", True), ("task.still", {}, "ops:stall", True), ("task.still", {}, "ops:end", False),
        ("job.idle_gpus", {}, "ops", True), ("job.idle_gpus", {}, "ops:idle", True), ("job.idle_gpus", {}, "ops:end", False),
        ("job.started", {}, "ops", False), ("job.failed", {}, "others", False), ("job.failed", {}, "no words", False),
    ],
)  # fmt: skip
def test_which_events_are_told(kind: str, data: dict[str, Any], wish: str, is_told: bool) -> None:
    assert (write_notice(HOOK, event(kind, **data), job(wish), "") is not None) is is_told


def test_a_target_of_another_project_is_not_told() -> None:
    other = msgspec.structs.replace(HOOK, project="speech")
    assert write_notice(other, event("job.failed"), job("ops"), "") is None
    assert list_moments(other, job("ops:first-output", has_output=True), NOW) == []


@pytest.mark.parametrize(
    ("wishes", "project", "is_told"),
    [
        ("ops", None, True), ("me ops:budget", None, True), ("ops", "vision", True), ("ops", "speech", False),
        ("ops:end", None, False), ("me", None, False), ("", None, False), ("no words:", None, False),
    ],
)  # fmt: skip
def test_a_budget_is_told_to_the_targets_of_its_project(
    wishes: str, project: str | None, is_told: bool
) -> None:
    hook = msgspec.structs.replace(HOOK, project=project)
    reached = EventRecord(
        id="e",
        at=NOW,
        kind="project.budget",
        project="vision",
        message="project vision has spent $400.00",
        data={"notify": wishes},
    )
    body = write_notice(hook, reached, None, "")
    assert (body is not None) is is_told
    assert body is None or "has spent $400.00" in body


def test_a_moment_keeps_its_id_and_comes_when_it_is_due() -> None:
    """NOTICE-1"""
    waiting = job("ops:waits=60,first-output", waited_seconds=59.0)
    assert list_moments(HOOK, waiting, NOW) == []
    late = msgspec.structs.replace(waiting, waited_seconds=60.0, has_output=True)
    ids = [one.id for one in list_moments(HOOK, late, NOW)]
    assert ids == ["first-output:j", "waits:j:1"]
    later = msgspec.structs.replace(late, waited_seconds=9999.0)
    assert [one.id for one in list_moments(HOOK, later, NOW)] == ids


def test_only_the_last_lines_of_a_failure_are_told() -> None:
    tail = "\n".join(f"line {n}" for n in range(100))
    body = write_notice(HOOK, event("job.failed"), job("ops", log_tail=tail), "https://hf.example/")
    assert body is not None
    assert "line 90" in body
    assert "line 89" not in body
    assert "https://hf.example/v1/jobs/j" in body
    good = write_notice(HOOK, event("job.succeeded"), job("ops", log_tail=tail), "")
    assert good is not None
    assert "line 99" not in good


# ---- NOTICE-2


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("slack://T1/B1/abc", "Slack"), ("https://hooks.slack.com/services/T1/B1/abc", "Slack"), ("discord://1/a", "Discord"),
        ("mailtos://u:p@mail.example.org?to=a@b.org&mode=ssl", "mail"), ("ntfy://topic", "ntfy, without TLS"),
        ("https://prod-1.westeurope.logic.azure.com:443/workflows/a?api-version=1&sp=x&sv=1.0&sig=y", "Teams"),
    ],
)  # fmt: skip
def test_the_services_on_the_list_may_be_used(url: str, service: str) -> None:
    assert name_service(url, allow_private=False) == service


@pytest.mark.parametrize(
    "url",
    [
        "json://a.example/", "file:///etc/passwd", "syslog://", "exec://x", "https://evil.example/", "http://hooks.slack.com/services/a",
        "https://hooks.slack.com.evil.example/x", "https://hooks.slack.com@evil.example/x", "mailto://u:p@mail.example.org",
        "ntfy://host/topic", "mailtos://u:p@h?template=/etc/passwd", "slack://a/b/c?verify=no", "slack://a/b/c?store=yes",
        "slack://a/b/c?redirect=yes", "slack://a/b c", "", "slack", "ntfys://h/t?attach=/etc/passwd", "mailtos://h?pgpkey=/x",
        "workflows://h/a/b?template=/etc/passwd", "slack://" + "a" * 3000, "discord://1/a?template=", "https://[",
    ],
)  # fmt: skip
def test_other_schemes_and_options_are_refused_without_repeating_the_secret(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        name_service(url, allow_private=False)
    assert "passwd" not in refused.value.message


def test_what_goes_without_tls_needs_the_setting() -> None:
    for scheme in SERVICES:
        url = f"{scheme}://u:p@host/topic"
        assert name_service(url, allow_private=True)
