"""The pages of the reference say what the server does."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.runtime.metrics import Metrics
from tests.reference.rest import render_metrics_page, render_rest_page

PAGES = Path(__file__).resolve().parents[4] / "docs" / "reference"


def test_the_rest_page_is_of_today() -> None:
    assert (PAGES / "rest.md").read_text() == render_rest_page(), (
        "python -m tests.reference.rest rest"
    )


def test_the_metrics_page_is_of_today() -> None:
    assert (PAGES / "metrics.md").read_text() == render_metrics_page(), (
        "python -m tests.reference.rest metrics"
    )


def test_every_label_is_told() -> None:
    """Families without a sample do not tell theirs, so the page has a list, and the list is held to
    the metrics here."""
    rows = dict(
        line.strip("| ").split(" | ", 1)
        for line in render_metrics_page().splitlines()
        if line.startswith("| `")
    )
    labelled = [m for m in vars(Metrics()).values() if getattr(m, "_labelnames", ())]
    assert len(labelled) > 5
    for metric in labelled:
        (family,) = metric.describe()
        name = family.name + ("_total" if family.type == "counter" else "")
        told = ", ".join(f"`{label}`" for label in metric._labelnames)
        assert rows[f"`{name}`"].split(" | ")[1] == told, name


def test_no_query_has_a_truth_value_because_a_query_is_text() -> None:
    for endpoint in ENDPOINTS:
        for field in msgspec.structs.fields(endpoint.query) if endpoint.query else ():
            assert field.type is not bool, f"{endpoint.path}: {field.name}; use `Flag`"
