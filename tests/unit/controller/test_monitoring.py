"""The alert rules and the Grafana dashboard of the docs name metrics that are there, and Prometheus
understands them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.unit.controller.conftest import Served

FOLDER = Path(__file__).parents[3] / "docs" / "monitoring"
EXPRESSIONS = [
    rule["expr"]
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
] + [
    target["expr"]
    for panel in json.loads((FOLDER / "grafana.json").read_text())["panels"]
    for target in panel["targets"]
]


async def test_every_name_is_a_metric_with_that_label(served: Served) -> None:
    text = (FOLDER.parent / "reference" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(holdfast_\w+)` \|", text, re.MULTILINE))
    used = {name for each in EXPRESSIONS for name in re.findall(r"holdfast_\w+", each)}
    used = {re.sub(r"_bucket$", "", name) for name in used}
    assert used - known == set()
    scraped = (await served.call("GET", "/metrics", "read")).text
    for name in used:
        assert f"# TYPE {name.removesuffix('_total')}" in scraped, name


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is Prometheus' own")
def test_promtool_understands_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", FOLDER / "alerts.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
