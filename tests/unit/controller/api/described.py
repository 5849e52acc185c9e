"""The API's description as schemathesis reads it. Imported by the test that needs it when it runs,
because it takes nearly a second and every worker collects every test."""

from __future__ import annotations

import os
from collections.abc import Mapping

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from holdfast.controller.openapi import build_openapi
from holdfast.controller.routes import ENDPOINTS

# Not `positive_data_acceptance`: that a queue exists or a host is large enough, no schema can say.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]

schema = schemathesis.openapi.from_dict(build_openapi(ENDPOINTS))
OPERATIONS = {found.ok().label: found.ok() for found in schema.get_all_operations()}
LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
made_up = settings(
    max_examples=100 if LONG else 3, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def call_as_described(
    label: str, url: str, session: requests.Session, headers: Mapping[str, str]
) -> None:
    """Send an operation every request that is made up for it, and check each answer.

    Built here as `schema.parametrize` builds it, which does so while tests are collected: what it
    covers systematically takes seconds to make up, in every worker.
    """

    def call(case: schemathesis.Case) -> None:
        if case.operation.path.endswith("/logs") and "follow" in (case.query or {}):
            case.query["follow"] = "0"
        case.call_and_validate(
            base_url=url, session=session, headers=dict(headers), checks=CHECKS, timeout=20
        )

    build_operation_test(
        config=schema.config,
        operation=OPERATIONS[label],
        test_func=made_up(call),
        given_kwargs={},
        feedback=FeedbackSources(),
    )()
