"""The guards of a browser's sign-in, in a real Chromium: pages of others, a stolen cookie, hostile names,
and files that a job made."""

from __future__ import annotations

from urllib.parse import quote

from tests.unit.controller.conftest import FakeAgent
from tests.unit.controller.web.chromium.person import SECOND, Person, expect, serve_elsewhere
from tests.unit.controller.web.test_job import keep_outputs

TRY_ALL = """async (base) => {
  const found = {};
  const look = async (name, work) => { try { found[name] = await work(); } catch (error) { found[name] = "refused"; } };
  for (const [method, path] of CALLS)
    for (const mode of ["cors", "no-cors"])
      await look(method + " " + path + " " + mode, async () => {
        const body = method === "GET" ? undefined : "{}";
        const answer = await fetch(base + path, { method, mode, credentials: "include", body });
        return answer.type + " " + answer.status + " " + (await answer.text()).slice(0, 20);
      });
  for (const path of SOCKETS)
    await look("socket " + path, () => new Promise((told) => {
      const socket = new WebSocket(base.replace("http", "ws") + path, ["holdfast-session", "ticket.x"]);
      socket.onopen = () => told("open");
      socket.onclose = () => told("refused");
    }));
  return found;
}"""


async def test_a_page_of_another_origin_reads_and_changes_nothing(person: Person) -> None:
    """Also one under our own host name at another port, to which a browser sends our cookie."""
    job = await person.served.submit(name="mine")
    await person.served.call("PUT", "/v1/queues/q", json={})
    signed = await person.sign_in()
    calls = [
        ["GET", "/v1/jobs"], ["GET", "/jobs"], ["GET", "/live"], ["POST", f"/v1/jobs/{job['id']}/cancel"],
        ["POST", "/v1/queues/q/pause"], ["PUT", "/v1/queues/evil"], ["PATCH", "/v1/config"],
        ["DELETE", "/v1/queues/q"], ["POST", "/sign-out"], ["POST", "/sign-in"], ["POST", "/graphql"],
    ]  # fmt: skip
    sockets = [f"/v1/jobs/{job['id']}/sessions/open"]
    script = TRY_ALL.replace("CALLS", repr(calls)).replace("SOCKETS", repr(sockets))
    async with serve_elsewhere(f"<title>evil</title><iframe src='{person.base}/'></iframe>") as (
        port,
        heads,
    ):
        for host in ("127.0.0.1", "localhost", "holdfast.localhost"):
            page = await person.context.new_page()
            await page.goto(f"http://{host}:{port}/elsewhere")
            found = await page.evaluate(script, person.base)
            assert len(found) == 2 * len(calls) + len(sockets)
            # A request without a preflight gets no answer that a script may read.
            assert set(found.values()) <= {"refused", "opaque 0 "}, found
            frame = page.frames[-1]
            assert frame.url.startswith("chrome-error:") or not await frame.locator("h1").count()
            await page.close()
        cookies = [head for head in heads if "holdfast_sign_in" in head]
        assert all("holdfast.localhost" in head for head in cookies)
    assert (await person.served.job(job["id"]))["state"] == "queued"
    queues = (await person.served.call("GET", "/v1/queues")).json()["items"]
    assert [(each["name"], each["paused_at"]) for each in queues if each["name"] in ("q", "evil")] == [("q", None)]  # fmt: skip
    await signed.reload()
    await expect(signed.locator("h1")).to_have_text("Now")  # it is signed in still
    for name in ("127.0.0.1", "localhost"):
        answer = await signed.request.get(f"http://{name}:{person.base.rpartition(':')[2]}/jobs")
        assert answer.status == 421


async def test_our_own_page_changes_nothing_without_the_proof(person: Person) -> None:
    await person.served.call("PUT", "/v1/queues/q", json={})
    page = await person.sign_in()
    for method, path in (
        ("DELETE", "/v1/queues/q"), ("PUT", "/v1/queues/other"), ("PATCH", "/v1/config"),
        ("POST", "/v1/queues/q/pause"), ("GET", "/v1/jobs"), ("POST", "/sign-out"),
    ):  # fmt: skip
        words = "([method, path]) => fetch(path, {method, body: method === 'GET' ? undefined : '{}'}).then((a) => a.status)"
        assert await page.evaluate(words, [method, path]) == 401, (method, path)
    queues = (await person.served.call("GET", "/v1/queues")).json()["items"]
    assert [each["name"] for each in queues if each["name"] in ("q", "other")] == ["q"]


async def test_a_stolen_cookie_reads_until_its_sign_in_is_ended_and_changes_nothing(
    person: Person,
) -> None:
    job = await person.served.submit(name="mine")
    owner = await person.sign_in()
    thief = await person.chromium.new_context(user_agent="a thief")
    await thief.add_cookies(await person.context.cookies())
    path = f"/jobs/{job['id']}"
    (cookie,) = await person.context.cookies()
    stolen = {
        "Host": person.base.partition("://")[2],
        "Cookie": f"{cookie['name']}={cookie['value']}",
        "Origin": person.base,
    }
    http = person.served.http
    assert (await http.get(path, headers=stolen)).status_code == 200
    cancelled = await http.post(f"/v1/jobs/{job['id']}/cancel", headers=stolen)
    assert (cancelled.status_code, cancelled.json()["code"]) == (401, "no_proof")
    page = await thief.new_page()
    await page.goto(person.base + path)
    await page.wait_for_url("**/sign-in", timeout=2 * SECOND)  # its stream is refused
    assert (await person.served.job(job["id"]))["state"] == "queued"
    await owner.goto(f"{person.base}/settings")
    await owner.locator("#sign-ins").get_by_role("button", name="End", exact=True).click()
    await owner.click("#dialog-yes")
    await owner.wait_for_url("**/sign-in", timeout=2 * SECOND)
    assert (await http.get(path, headers=stolen)).status_code == 401
    await thief.close()


async def test_a_report_that_a_job_made_is_a_download_and_runs_nowhere(
    person: Person, agent: FakeAgent
) -> None:
    data = b"<script>document.title = 'ran'; fetch('/v1/jobs')</script>"
    job = await person.served.submit(outputs=["out/"])
    order = await agent.take()
    await agent.sync(agent.running(order))
    await keep_outputs(agent, order, data)
    page = await person.sign_in()
    await page.goto(f"{person.base}/jobs/{job['id']}?tab=files")
    async with page.expect_download() as told:
        await page.locator("tr", has_text="out/report.html").locator("a").click()
    download = await told.value
    assert download.suggested_filename == "report.html"
    assert (await download.path()).read_bytes() == data
    assert len(person.context.pages) == 1
    assert "ran" not in await page.title()


EVIL = "<img src=//elsewhere.example/x onerror=alert(1)>\u202eabc\U0001f600'\"{{7*7}}"


async def test_hostile_names_are_text_on_every_page(person: Person, agent: FakeAgent) -> None:
    await agent.sync()
    call = person.served.call
    await call("PATCH", "/v1/config", json={"set": {"webhook_allow_private": True}})
    await person.served.submit(
        name=EVIL, labels={"team": EVIL}, argv=["echo", EVIL], env={"A": EVIL}
    )
    job = (await call("GET", "/v1/jobs")).json()["items"][0]
    order = await agent.take()
    await agent.sync(agent.running(order))
    nodes = [{"name": "q", "ask": {"prompt": EVIL}}]
    run = await call(
        "POST", "/v1/workflows", json={"id": "0" * 20, "spec": {"name": "w", "nodes": nodes}}
    )
    hook = await call(
        "POST", "/v1/webhooks", json={"url": "http://127.0.0.1:9/" + quote(EVIL), "name": EVIL}
    )
    schedule = await call(
        "PUT", "/v1/schedules/s", json={"every_seconds": 60, "job": {"argv": [EVIL], "name": EVIL}}
    )
    for path in ("hosts/h1/drain", "queues/cpu/pause", "schedules/s/pause"):
        assert (await call("POST", f"/v1/{path}", json={"reason": EVIL})).status_code == 200
    await call("POST", "/v1/tokens", json={"role": "submit", "name": EVIL, "user": "u"})
    page = await person.sign_in()
    page.on("dialog", lambda dialog: person.wrong.append(dialog.message))
    seen = 0
    for path in (
        "/", "/jobs", f"/jobs/{job['id']}", f"/jobs/{job['id']}?tab=spec", f"/jobs/{job['id']}?tab=events",
        f"/jobs/{job['id']}/again", "/hosts", "/hosts/h1", "/queues", "/schedules", "/schedules/s", "/workflows",
        "/events", "/report", "/settings", f"/find?q={quote(EVIL)}", f"/jobs?q={quote(EVIL)}", f"/settings?q={quote(EVIL)}",
        f"/workflows/{'0' * 20}", f"/workflows/{'0' * 20}?node=q",
    ):  # fmt: skip
        await page.goto(person.base + path)
        seen += "onerror=alert" in await page.locator("main").inner_text()
        assert await page.locator("img").count() == 0, path
        assert await page.locator("main script").count() == 0, path
    assert seen > 12
    assert (run.status_code, hook.status_code, schedule.status_code) == (201, 201, 200)
    assert not [url for url in person.foreign if "elsewhere" in url]
