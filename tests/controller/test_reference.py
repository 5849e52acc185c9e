"""The pages of the reference say what the server does."""

from __future__ import annotations

from pathlib import Path

from holdfast.controller.reference import render_metrics_page, render_rest_page

PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"


def test_the_rest_page_is_of_today() -> None:
    assert (PAGES / "rest.md").read_text() == render_rest_page(), "python -m holdfast.controller.reference rest"


def test_the_metrics_page_is_of_today() -> None:
    assert (PAGES / "metrics.md").read_text() == render_metrics_page(), (
        "python -m holdfast.controller.reference metrics"
    )
