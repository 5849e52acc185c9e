"""Where the controller is found, and that a token never goes to an address it was not made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.where.keeping import change_contexts
from holdfast.client.contexts.file import CliContext
from holdfast.client.locate import NoController, locate
from holdfast.errors import NotFound, ValidationError
from holdfast.http.addresses import split_urls


def put(folder: Path, url: str | None, token: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("url", url), ("token", token)):
        if text is not None:
            (folder / name).write_text(text + "\n")


def log_in(
    env: dict[str, str], name: str, url: str, token: str, ca_file: str | None = None
) -> None:
    kept = CliContext(urls=split_urls(url), token=token, ca_file=ca_file)
    change_contexts(env, lambda before: before.put(name, kept))


def test_the_order(tmp_path: Path) -> None:
    """Arguments, HOLDFAST_URL, HOLDFAST_CONTEXT, the current context, the nearest `up`."""
    put(tmp_path / "holdfast-data", "http://127.0.0.1:1", "up")
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    def find(**given: str) -> tuple[str, str | None, str, str]:
        place = locate(environ=env, folder=below, **given)
        return place.url, place.token, place.source, place.context

    assert find() == ("http://127.0.0.1:1", "up", str(tmp_path / "holdfast-data"), "local")
    log_in(env, "lab", "https://lab:2", "of-lab")
    log_in(env, "prod", "https://prod:3", "of-prod")
    assert find() == ("https://prod:3", "of-prod", "the current context, prod", "prod")
    env["HOLDFAST_CONTEXT"] = "lab"
    by_name = ("https://lab:2", "of-lab", "the context lab (HOLDFAST_CONTEXT)", "lab")
    assert find() == by_name
    env["HOLDFAST_URL"], env["HOLDFAST_TOKEN"] = "http://env:4", "of-env"
    assert find() == ("http://env:4", "of-env", "HOLDFAST_URL", "")
    assert find(context="lab")[:3] == ("https://lab:2", "of-lab", "the context lab (--context)")
    assert find(context="local")[0] == "http://127.0.0.1:1"
    assert find(url="http://arg:5", token="arg")[:2] == ("http://arg:5", "arg")
    with pytest.raises(ValidationError, match="one of the two"):
        find(url="http://arg:5", context="lab")
    with pytest.raises(NotFound, match=r"lab, local, prod.*holdfast login"):
        find(context="nowhere")


def test_a_context_keeps_the_token_of_another_server_out(tmp_path: Path) -> None:
    """HOLDFAST_TOKEN belongs to HOLDFAST_URL: a context sends its own."""
    env = {"XDG_CONFIG_HOME": str(tmp_path), "HOLDFAST_TOKEN": "of-env"}
    log_in(env, "prod", "https://prod:3", "of-prod", ca_file="/ca.pem")
    place = locate(environ=env, folder=tmp_path)
    assert (place.token, place.token_source) == ("of-prod", "the context prod")
    assert place.ca_file == "/ca.pem"
    assert locate("https://else:1", environ={"XDG_CONFIG_HOME": str(tmp_path)}).token is None
    found = locate("https://prod:3/", environ={"XDG_CONFIG_HOME": str(tmp_path)})
    assert (found.token, found.token_source) == ("of-prod", "the context prod")


def test_several_addresses_are_one_place(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    place = locate("https://a:1/, https://b:2,https://a:1", "t", environ=env)
    assert (place.url, place.urls) == ("https://a:1", ("https://a:1", "https://b:2"))
    with pytest.raises(ValidationError, match="'b:2'"):
        locate("https://a:1,b:2", "t", environ=env)


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
