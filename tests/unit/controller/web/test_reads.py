"""No GET changes anything: every route and every page is read, and the database is as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.controller.routes import ENDPOINTS
from holdfast.wire.operations.operation import Role
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.web.conftest import Browser
from tests.unit.controller.web.effects import Cluster, open_cluster
from tests.unit.controller.web.test_pages import PLACES

OF = {"jobs": "job", "workflows": "run", "call-sets": "set", "webhooks": "hook", "sessions": "session"}  # fmt: skip
NAMES = {"host": "h1", "rank": "0", "attempt": "1", "index": "0", "node": "q"}
NAMED = {"queues": "cpu", "pools": "p", "schedules": "s", "projects": "default"}
TIMES = 4


async def list_tables(cluster: Cluster) -> list[str]:
    """Return every table but the one by which the controller shows all the time that it leads."""
    query = "select tablename as name from pg_tables where schemaname = 'public'"
    return [row["name"] for row in await cluster.read(query) if row["name"] != "leadership"]


async def digest(cluster: Cluster, tables: Iterable[str]) -> dict[str, str]:
    """Return a word for all rows of each table."""
    query = " union all ".join(
        f"select '{table}' as name, md5(string_agg(t::text, ',' order by t::text)) as word from {table} t"
        for table in tables
    )
    return {row["name"]: row["word"] for row in await cluster.read(query)}


def list_paths(cluster: Cluster) -> list[str]:
    """Return the paths of all GETs that a user may send: of the API, and of the pages."""
    paths = list(PLACES)
    for each in ENDPOINTS:
        if each.method == "GET" and each.role not in (Role.HOST, Role.REPLICA) and not each.socket:
            kind = each.path.split("/")[2] if each.path.startswith("/v1/") else ""
            names = {"id": cluster.ids.get(OF.get(kind, ""), "x"), "name": NAMED.get(kind, "x")}
            paths.append(
                re.sub(r"\{(\w+)\}", lambda m, n=names: (NAMES | n).get(m[1], "x"), each.path)
            )
    paths = [
        path.replace("/calls/0/logs", "/calls/7/logs") for path in paths
    ]  # of call 0 they go on
    job = f"/jobs/{cluster.ids['job']}"
    paths += [
        f"{job}?tab={tab}" for tab in ("output", "ranks", "readings", "stacks", "files", "spec")
    ]
    paths += [
        f"/settings/webhooks/{cluster.ids['hook']}",
        f"{job}/again",
        f"{job}/shell",
        f"{job}/lines",
    ]
    paths += ["/pools/p", "/schedules/s", f"/workflows/{cluster.ids['run']}", "/v1/logs?pattern=x"]
    return paths


async def test_no_get_changes_anything(served: Served, agent: FakeAgent, browser: Browser) -> None:
    """Rows that the controller writes by itself meanwhile are told apart, because they do not come with the same
    path each time."""
    async with open_cluster(served, agent) as cluster:
        tables = await list_tables(cluster)
        paths = list_paths(cluster)
        before = await digest(cluster, tables)
        found = [(await browser.send("GET", path, proof=True)).status_code for path in paths]
        assert len([status for status in found if status == 200]) > 70
        assert 401 not in found
        assert 403 not in found
        after = await digest(cluster, tables)
        busy = [table for table in tables if before[table] != after[table]]
        for path in paths if busy else []:
            changed = set(busy)
            for _ in range(TIMES):
                before = await digest(cluster, changed)
                await browser.send("GET", path, proof=True)
                after = await digest(cluster, changed)
                changed = {table for table in changed if before[table] != after[table]}
                if not changed:
                    break
            assert not changed, path
