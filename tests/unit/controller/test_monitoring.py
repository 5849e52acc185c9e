"""The alert rules and the Grafana dashboard of the docs name metrics that are there, and Prometheus
understands them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from holdfast.core.ledger.values import LedgerName
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import free_port, within

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


SELECTOR = re.compile(r"(holdfast_\w+)(?:\{([^}]*)\})?")
USED = {re.sub(r"_bucket$", "", name) for each in EXPRESSIONS for name, _ in SELECTOR.findall(each)}


async def test_every_name_is_a_metric_with_that_label(served: Served) -> None:
    text = (FOLDER.parent / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(holdfast_\w+)` \| \w+ \| (.*?) \|", text, re.MULTILINE)
    labels = {name: set(re.findall(r"\w+", told)) for name, told in rows}
    assert USED - set(labels) == set()
    for expression in EXPRESSIONS:
        for name, chosen in SELECTOR.findall(expression):
            wanted = set(re.findall(r"(\w+)\s*[=!]", chosen))
            assert wanted <= labels[re.sub(r"_bucket$", "", name)], (name, chosen)
    scraped = (await served.call("GET", "/metrics", "read")).text
    for name in USED:
        assert f"# TYPE {name.removesuffix('_total')}" in scraped, name


async def test_the_ledger_is_in_the_first_scrape(served: Served) -> None:
    """With every name, at zero: a counter that appears with its first value rises from nothing, which
    Prometheus counts as no rise."""
    scraped = (await served.call("GET", "/metrics", "read")).text
    for unit in ("gpu", "cpu"):
        for name in LedgerName:
            for metric in ("holdfast_ledger_seconds_total", "holdfast_ledger_open_seconds"):
                assert f'{metric}{{name="{name}",unit="{unit}"}} 0.0\n' in scraped


PROMETHEUS = shutil.which("prometheus")


@pytest.mark.skipif(PROMETHEUS is None, reason="`apt-get install prometheus` brings it")
async def test_a_real_prometheus_knows_every_name_and_can_answer(
    served: Served, agent: FakeAgent, tmp_path: Path
) -> None:
    assert PROMETHEUS is not None
    await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    port = free_port()
    target = served.url.partition("://")[2]
    (tmp_path / "rules.yaml").write_text((FOLDER / "alerts.yaml").read_text())
    (tmp_path / "prometheus.yaml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        "rule_files: [rules.yaml]\n"
        "scrape_configs:\n"
        f"- {{job_name: holdfast, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    scraper = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={tmp_path}/prometheus.yaml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        stderr=asyncio.subprocess.DEVNULL,
    )
    api = f"http://127.0.0.1:{port}/api/v1"
    try:
        async with within(60):
            while USED - await read_known(served, api):
                await asyncio.sleep(0.2)
        for expression in EXPRESSIONS:
            answer = await served.http.get(f"{api}/query", params={"query": expression})
            assert answer.json()["status"] == "success", answer.text
        (found,) = (await ask(served, api, "holdfast_jobs{state='running'}"))["result"]
        assert found["value"][1] == "1"
        ledger = (await ask(served, api, 'holdfast_ledger_seconds_total{unit="gpu"}'))["result"]
        assert {each["metric"]["name"] for each in ledger} == set(LedgerName)
        async with within(20):
            while (await read_healths(served, api)) != {"ok"}:  # of the rules, each second
                await asyncio.sleep(0.2)
    finally:
        scraper.terminate()
        await scraper.wait()


async def read_healths(served: Served, api: str) -> set[str]:
    (group,) = (await served.http.get(f"{api}/rules")).json()["data"]["groups"]
    return {rule["health"] for rule in group["rules"]}


async def read_known(served: Served, api: str) -> set[str]:
    """The names of the metrics that were scraped, also of those without a sample yet."""
    with contextlib.suppress(httpx.TransportError):
        answer = await served.http.get(f"{api}/metadata")
        if answer.status_code == 200:
            return set(answer.json()["data"])
    return set()


async def ask(served: Served, api: str, query: str) -> dict[str, Any]:
    answer = await served.http.get(f"{api}/query", params={"query": query})
    found: dict[str, Any] = answer.json()["data"]
    return found


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is Prometheus' own")
def test_promtool_understands_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", FOLDER / "alerts.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
