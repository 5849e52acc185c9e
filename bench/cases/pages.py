"""The dashboard's pages with 100,000 jobs and 1,000 hosts on record: how long each takes at the server and
of a core, how large each is, what 200 browsers at rest cost, and a bulk cancel of 10,000."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import time
from contextlib import ExitStack
from urllib.parse import quote, urlsplit

from bench.figures import Figures, Line, percentile, spread
from bench.fleet import AgentProcess
from bench.processes import sum_cpu_seconds
from bench.scale import Scale, say
from bench.system import Place, Scratch, list_role, start_up

name = "pages"
budget = (
    "a page p99 <= 100 ms at the server, <= 20 ms of a core, <= 200 kB; 200 browsers <= 5 % of a core at "
    "rest; bulk cancel of 10,000 <= 10 s"
)
QUEUE = "pages"
MOST_CORE_MS = 20.0
LOOK_SECONDS = 15.0


class Browser:
    """A browser that is signed in, as far as the server can tell."""

    def __init__(self, place: Place) -> None:
        parts = urlsplit(place.url)
        self.address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.host = f"holdfast.localhost:{parts.port}"
        link = place.connection.call("POST", "/v1/sign-ins/links", {})["url"]
        body = json.dumps({"link": link.partition("#")[2]})
        headers = {"Host": self.host, "Origin": f"http://{self.host}"}
        with _Connection(self.address) as connection:
            connection.request("POST", "/sign-in", body, headers)
            answer = connection.getresponse()
            self.cookie = (answer.headers["Set-Cookie"] or "").partition(";")[0]
            self.proof = json.loads(answer.read())["proof"]

    def get(self, connection: http.client.HTTPConnection, path: str) -> bytes:
        """The page at a path, or the answer that sends the browser on to it."""
        connection.request("GET", path, headers={"Host": self.host, "Cookie": self.cookie})
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status in (200, 303), (path, answer.status, data[:300])
        return data

    def listen(self) -> socket.socket:
        """A stream of changes that nothing is read from but what comes."""
        line = socket.create_connection(self.address)
        line.sendall(
            f"GET /live HTTP/1.1\r\nHost: {self.host}\r\nCookie: {self.cookie}\r\n"
            f"Holdfast-Proof: {self.proof}\r\n\r\n".encode()
        )
        assert b"200" in line.recv(65_536)
        return line


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(*address, timeout=60)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def run(scale: Scale) -> Figures:
    """Milliseconds, bytes, shares of a core and seconds."""
    jobs = scale.pick(100_000, 300)
    with Scratch() as scratch, AgentProcess() as agents:
        place = start_up(scratch, slots=2)
        place.make_queue(QUEUE)
        place.pause(QUEUE)
        say(f"submitting {jobs} jobs")
        specs = [
            {
                "argv": ["true"],
                "name": f"train-{n % 977}",
                "queue": QUEUE,
                "labels": {"team": f"t{n % 31}"},
            }
            for n in range(jobs)
        ]
        place.submit_many(specs)
        say("registering hosts")
        patient = {"dead_host_seconds": 36_000.0, "sync_interval_seconds": 60.0}
        place.connection.call("PATCH", "/v1/config", {"set": patient, "unset": []})
        agents.register(place, scale.pick(1000, 4), 8, "node")
        browser = Browser(place)
        lines = [*measure_pages(place, browser, scale), measure_rest(place, browser, scale)]
        lines.append(measure_cancel(place, scale.pick(10_000, 100)))
    note = (
        "The limit of a page is the API's own answer of 50 jobs, by the same road, in the same run. Bytes are "
        "those of the page compressed by gzip, as Holdfast sends it to browsers. Milliseconds of a core are "
        "the controller's and PostgreSQL's together, a mean."
    )
    return Figures(name=name, lines=tuple(lines), notes=(note,))


def measure_pages(place: Place, browser: Browser, scale: Scale) -> list[Line]:
    """Each page's milliseconds."""
    one = place.connection.call("GET", f"/v1/jobs?queue={QUEUE}&limit=1")["items"][0]["id"]
    times = scale.pick(60, 3)
    limits = []
    for _ in range(times):
        began = time.perf_counter()
        place.connection.call("GET", f"/v1/jobs?queue={QUEUE}&limit=50")
        limits.append((time.perf_counter() - began) * 1000)
    lines = []
    processes = [*list_role(place, "controller"), *list_role(place, "postgres")]
    for title, path in (
        ("now", "/"),
        ("jobs", "/jobs"),
        ("filter", f"/jobs?q={quote('state:queued label:team=t7')}"),
        ("search", f"/jobs?q={quote('train-97')}"),
        ("job", f"/jobs/{one}"),
        ("hosts", "/hosts"),
        ("report", "/report"),
        *(
            (f"find of {title}", f"/find?q={quote(word)}")
            for title, word in (
                ("an id's beginning", one[:8]),
                ("a part of many names", "train-9"),
                ("a host", "node-3"),
                ("a queue", QUEUE),
                ("a label's words", "team=t7"),
                ("a word of a reason, which no name has", "paused"),
            )
        ),
    ):
        with _Connection(browser.address) as connection:
            data = browser.get(connection, path)
            took = []
            before = sum_cpu_seconds(processes)
            for _ in range(times):
                began = time.perf_counter()
                browser.get(connection, path)
                took.append((time.perf_counter() - began) * 1000)
            work = (sum_cpu_seconds(processes) - before) / times * 1000
        worst = percentile(took, 99)
        lines.append(
            Line(
                what=f"page {title}, p99",
                unit="ms",
                value=spread([worst]),
                limit_name="the API's list of 50",
                limit=spread([percentile(limits, 99)]),
                budget="<= 100 ms; <= 200 kB",
                met=worst <= 100 and len(data) <= 200_000,
            )
        )
        lines.append(
            Line(
                what=f"page {title}, of a core",
                unit="ms",
                value=spread([work]),
                limit_name="promised",
                limit=spread([MOST_CORE_MS]),
                budget=f"<= {MOST_CORE_MS:g} ms",
                met=work <= MOST_CORE_MS,
            )
        )
        small = len(gzip.compress(data)) / 1000
        say(f"  page {title}: {len(data) / 1000:.0f} kB, gzip {small:.1f} kB")
    return lines


def measure_rest(place: Place, browser: Browser, scale: Scale) -> Line:
    """The controller's share of a core while browsers listen and nothing happens."""
    (controller,) = list_role(place, "controller")

    def share(seconds: float) -> float:
        before = sum_cpu_seconds([controller])
        time.sleep(seconds)
        return (sum_cpu_seconds([controller]) - before) / seconds * 100

    seconds = scale.pick(LOOK_SECONDS, 1.0)
    alone = share(seconds)
    with ExitStack() as open_lines:
        for _ in range(scale.pick(200, 3)):
            open_lines.enter_context(browser.listen())
        time.sleep(scale.pick(2.0, 0.2))
        found = share(seconds)
    return Line(
        what=f"{scale.pick(200, 3)} browsers at rest",
        unit="% of a core",
        value=spread([found]),
        limit_name="none",
        limit=spread([alone]),
        budget="<= 5 over",
        met=found - alone <= 5,
    )


def measure_cancel(place: Place, count: int) -> Line:
    """Seconds of a bulk cancel as the page does it: the ids of all that match, then 500 a call."""
    began = time.perf_counter()
    ids: list[str] = []
    cursor = ""
    while len(ids) < count:
        more = f"&cursor={quote(cursor)}" if cursor else ""
        found = place.connection.call("GET", f"/v1/jobs?queue={QUEUE}&limit=500{more}")
        ids += [job["id"] for job in found["items"]]
        cursor = found["next"]
    listed = time.perf_counter() - began
    for at in range(0, count, 500):
        body = {"ids": ids[at : min(at + 500, count)], "reason": "bench"}
        place.connection.call("POST", "/v1/jobs/cancel", body)
    took = time.perf_counter() - began
    return Line(
        what=f"bulk cancel of {count:,}",
        unit="s",
        value=spread([took]),
        limit_name="to list them",
        limit=spread([listed]),
        budget="<= 10 s of 10,000",
        met=took <= 10,
    )
