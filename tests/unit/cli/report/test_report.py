"""The command `report`: what it asks the controller, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.unit.cli.report.samples import usual_report
from tests.unit.cli.stub import Answer, Stub


@pytest.fixture
def told(stub: Stub) -> Stub:
    stub.on("GET /v1/report", Answer(usual_report()))
    return stub


def asked(stub: Stub) -> dict[str, list[str]]:
    """The query of the last request."""
    return parse_qs(urlsplit(stub.requests[-1].path).query)


def test_a_report_is_asked_for_as_the_words_say(told: Stub) -> None:
    result = told.run(
        *("report", "--by", "owner,label:team,day", "--last", "12h", "--project", "vision"),
        *("--label", "team=a", "--mine", "--cpu", "--limit", "7"),
    )
    assert result.exit_code == 0, result.output
    query = asked(told)
    assert query["by"] == ["owner", "label:team", "time"]
    assert (query["step"], query["unit"], query["owner"]) == (["day"], ["cpu"], ["@me"])
    assert (query["project"], query["label"], query["limit"]) == (["vision"], ["team=a"], ["7"])
    assert "until" not in query


def test_a_span_may_be_two_dates(told: Stub) -> None:
    told.run("report", "--since", "2026-11-19T00:00Z", "--until", "2026-11-26T00:00Z")
    query = asked(told)
    assert int(query["until"][0]) - int(query["since"][0]) == 7 * 86_400


def test_json_is_the_report_itself(told: Stub) -> None:
    found = json.loads(told.run("report", "--json").output)
    assert found["by"] == ["owner"]
    assert found["total"]["by_name"]["kept"] == 110.5


def test_the_page_is_written_to_a_file_or_printed(told: Stub, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = told.run("report", "--html", str(path))
    assert result.exit_code == 0, result.output
    assert path.read_text().startswith("<!doctype html>")
    assert told.run("report", "--html", "-").output.startswith("<!doctype html>")


def test_csv_is_printed_alone(told: Stub) -> None:
    lines = told.run("report", "--csv").output.splitlines()
    assert lines[0].startswith("owner,hours,goodput,usd,")
    assert len(lines) == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--by", "size"), "--by 'size' is none of job, owner"),
        (("--by", "owner,owner"), "names a field twice"),
        (("--by", "day,hour"), "names a field twice"),
        (("--last", "7d", "--since", "2h"), "either --last or --since"),
        (("--since", "2h", "--until", "3h"), "begins before it ends"),
        (("--json", "--csv"), "one at a time"),
        (("--html", "/nowhere/at/all.html"), "cannot be written to /nowhere/at/all.html"),
        (("--idle", "--csv"), "printed as a table"),
    ],
)
def test_what_cannot_be_told_is_refused_in_words(
    told: Stub, words: tuple[str, ...], says: str
) -> None:
    result = told.run("report", *words)
    assert result.exit_code != 0
    assert says in result.output


def test_idle_jobs_are_asked_for_by_project_and_owner(stub: Stub) -> None:
    stub.on("GET /v1/report/idle", Answer({"items": [], "next": None}))
    result = stub.run("report", "--idle", "--project", "vision", "--owner", "ada")
    assert result.output.strip() == "no job holds idle GPUs"
    assert asked(stub) == {"project": ["vision"], "owner": ["ada"]}
