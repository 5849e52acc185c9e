"""Where the controller is found, and that a token never goes to an address it was not made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.locate import NoController, locate
from holdfast.errors import ValidationError


def put(folder: Path, url: str | None, token: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("url", url), ("token", token)):
        if text is not None:
            (folder / name).write_text(text + "\n")


def test_the_order(tmp_path: Path) -> None:
    put(tmp_path / "holdfast-data", "http://127.0.0.1:1", "local")
    put(tmp_path / "config" / "holdfast", "http://far:2", "far")
    env = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "HOLDFAST_URL": "http://env:3",
        "HOLDFAST_TOKEN": "env",
    }
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert locate("http://arg:4", "arg", environ=env, folder=below).url == "http://arg:4"
    place = locate(environ=env, folder=below)
    assert (place.url, place.token) == ("http://env:3", "env")
    del env["HOLDFAST_URL"], env["HOLDFAST_TOKEN"]
    place = locate(environ=env, folder=below)
    assert (place.url, place.token, place.is_local) == ("http://127.0.0.1:1", "local", True)
    (tmp_path / "holdfast-data" / "url").unlink()
    place = locate(environ=env, folder=below)
    assert (place.url, place.token, place.is_local) == ("http://far:2", "far", False)


def test_a_token_stays_with_its_address(tmp_path: Path) -> None:
    put(tmp_path / "holdfast-data", "http://127.0.0.1:1", "local")
    assert locate("http://elsewhere:9", environ={}, folder=tmp_path).token is None
    assert locate("http://127.0.0.1:1/", environ={}, folder=tmp_path).token == "local"


def test_nothing_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoController, match=r"holdfast up.*HOLDFAST_URL"):
        locate(environ={}, folder=tmp_path)
    put(tmp_path / "holdfast-data", None, "local")
    with pytest.raises(NoController, match="not running"):
        locate(environ={}, folder=tmp_path)


def test_no_url(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="not a URL"):
        locate("127.0.0.1:7878", environ={}, folder=tmp_path)
