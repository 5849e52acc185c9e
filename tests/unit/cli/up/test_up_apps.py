"""What `up --app` says of a module that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.up.up import agent_options, warn_of_absent_apps


@pytest.mark.parametrize(
    ("app", "python", "warned"),
    [
        ("mytasks", None, False),
        ("films.render", None, False),  # a package of the folder
        ("json", None, False),  # installed
        ("mytask", None, True),
        ("mytask", "/usr/bin/python3", False),  # another interpreter may have it
    ],
)
def test_an_app_that_is_nowhere_is_told_of(
    tmp_path: Path, app: str, python: str | None, warned: bool
) -> None:
    (tmp_path / "mytasks.py").touch()
    (tmp_path / "films").mkdir()
    agent = agent_options(
        slots=1, gpus="0", queues=None, name=None, apps=[app], app_path=str(tmp_path),
        app_python=python,
    )  # fmt: skip
    told: list[str] = []
    warn_of_absent_apps(agent, told.append)
    assert [f"there is no module {app} in {tmp_path}" in text for text in told] == [True] * warned
