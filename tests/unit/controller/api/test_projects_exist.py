"""Work of a project that nobody made is refused, whichever kind of work it is."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client.methods.calls import make_set_id
from tests.unit.controller.conftest import SECRETS, Served, bearer

JOB = {"argv": ["true"], "project": "vison"}
CALL = {"function": "mytasks:f", "project": "vison"}


def ask(kind: str) -> tuple[str, str, dict[str, Any]]:
    new_id = make_set_id()
    job, call = {"job": {"spec": JOB}}, {"call": {"spec": CALL}}
    return {
        "job": ("POST", "/v1/jobs", JOB),
        "batch": ("POST", "/v1/jobs/batch", {"jobs": [{"argv": ["true"]}, JOB]}),
        "array": ("POST", "/v1/arrays", {"array": "0-3", "job": JOB}),
        "schedule": ("PUT", "/v1/schedules/nightly", {"every_seconds": 3600, "job": JOB}),
        "calls": ("POST", "/v1/call-sets", {"id": new_id, "spec": CALL}),
        "run": (
            "POST",
            "/v1/workflows",
            {
                "id": new_id,
                "spec": {"name": "w", "project": "vison", "nodes": [{"name": "a", **job}]},
            },
        ),
        "node": (
            "POST",
            "/v1/workflows",
            {"id": new_id, "spec": {"name": "w", "nodes": [{"name": "a", **call}]}},
        ),
    }[kind]


@pytest.mark.parametrize("kind", ["job", "batch", "array", "schedule", "calls", "run", "node"])
async def test_a_project_is_made_before_work_names_it(served: Served, kind: str) -> None:
    admin = bearer(SECRETS["admin"])
    made = await served.http.request("PUT", "/v1/projects/vision", json={}, headers=admin)
    assert made.status_code == 200, made.text
    method, path, body = ask(kind)
    refused = await served.http.request(method, path, json=body, headers=admin)
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_project"), refused.text
    assert "there is no project 'vison'; did you mean vision?" in refused.text
    assert "holdfast projects create vison" in refused.text
    made = await served.http.request("PUT", "/v1/projects/vison", json={}, headers=admin)
    taken = await served.http.request(method, path, json=body, headers=admin)
    assert taken.status_code < 300, taken.text
