"""A person's shell in a running task, in a real Chromium (`make browser`)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from holdfast.client import Client
from tests.system.cluster import Cluster
from tests.waits import wait_until

CHROMIUM = os.environ.get("HOLDFAST_TEST_CHROMIUM", "")
if not CHROMIUM:
    pytest.skip("`make browser` runs this, because it needs Chromium", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe  # noqa: E402
from playwright.sync_api import Page, expect, sync_playwright  # noqa: E402

pytestmark = pytest.mark.slow
PATIENCE_MS = 20_000


def types(page: Page, text: str, seen: str) -> None:
    """Type a line, and wait until the terminal shows what came of it."""
    page.locator(".shell textarea").press_sequentially(text)
    page.keyboard.press("Enter")
    expect(page.locator(".xterm-rows")).to_contain_text(seen, timeout=PATIENCE_MS)


def check_access(page: Page) -> None:
    """Raise where axe finds what is serious, in the light and in the dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # a word of two
        found = Axe().run(page).response["violations"]
        assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
    if picture := os.environ.get("HOLDFAST_TEST_PICTURE"):
        page.screenshot(path=picture.replace(".png", "-dark.png"))


def test_a_shell_in_a_browser_lives_through_a_lost_line_and_ends_with_its_token(
    shared: Cluster, tmp_path: Path
) -> None:
    shared.add_host("inside", cpu_slots=8)
    made = shared.client.create_token("submit", user="alice")
    with Client(shared.controller.url, made.secret) as alice:
        env = {"SHELL": "/bin/sh", "PS1": "ready> "}
        job = alice.submit(["sleep", "600"], env=env, tasks=2)
        shared.until(job.id, "running")
        link = alice.create_sign_in_link().url
    wrong: list[str] = []
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        page = chromium.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if "Security Policy" in said.text else None,
        )
        page.goto(link)
        page.wait_for_url(re.compile(r"\d/$"))
        base = page.url.rstrip("/")
        page.goto(f"{base}/jobs/{job.id}")
        page.get_by_role("link", name="Shell").click()
        page.get_by_label("Rank").fill("1")
        page.get_by_role("button", name="Go there").click()
        expect(page.locator("#shell-note")).to_have_text("Connected.", timeout=PATIENCE_MS)
        types(page, "echo hi $((40+2)) rank $HOLDFAST_RANK", "hi 42 rank 1")
        types(page, "printf '\\033[38;2;10;200;90mgre\\033[0men\\n'; stty size", "green")
        if picture := os.environ.get("HOLDFAST_TEST_PICTURE"):
            page.screenshot(path=picture)
        check_access(page)
        types(page, "echo be$((1+1)); sleep 100; echo over", "be2")
        page.keyboard.press("Control+c")
        page.set_viewport_size({"width": 700, "height": 600})
        types(page, "stty size | tr ' ' x; echo after $((2+3))", "after 5")
        rows, columns = re.findall(r"(\d+)x(\d+)", page.locator(".xterm-rows").inner_text())[-1]
        assert (int(rows) < 28, int(columns) < 100) == (True, True)
        page.set_viewport_size({"width": 360, "height": 740})
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360
        page.reload()  # the line is lost, and the shell is there
        types(page, "echo again $((6+1))", "again 7")
        expect(page.locator(".xterm-rows")).to_contain_text("after 5")
        (session,) = [each for each in shared.client.sessions(job.id) if each.rank == 1]
        assert (session.owner, session.from_address) == ("alice", "127.0.0.1")
        shared.client.revoke_token(made.id)
        host = shared.host_of(job.id)
        wait_until(lambda: not host.marked_pids(f"session {session.id}"), 5)
        page.wait_for_url(re.compile("/sign-in$"), timeout=PATIENCE_MS)
        chromium.close()
    assert wrong == []
