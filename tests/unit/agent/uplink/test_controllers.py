"""A host learns where the other controllers of its cluster serve (LEARN-1)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.controllers import FILE, KnownControllers
from holdfast.http.addresses import HttpAddress, read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.wire.agent import ControllersAnswer


class Named:
    """A controller that names these addresses."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)

    async def ask_controllers(self) -> ControllersAnswer:
        return ControllersAnswer(urls=self.urls)


def know(folder: Path, joined: str, named: Named) -> tuple[KnownControllers, AsyncHttp]:
    addresses = read_addresses(joined)
    http = AsyncHttp(addresses)
    calls = cast(ControllerCalls, named)

    def learn(found: list[HttpAddress]) -> None:
        http.learn(found)

    return KnownControllers(calls, addresses, folder, learn), http


async def test_what_is_learned_stands_behind_the_own_and_outlives_a_restart(tmp_path: Path) -> None:
    named = Named("http://a:1", "http://b:2")
    known, http = know(tmp_path, "http://a:1", named)
    await known.ask()
    await known.ask()
    assert http.urls == "http://a:1 or http://b:2"
    _, again = know(tmp_path, "http://a:1", named)
    assert again.urls == "http://a:1 or http://b:2"
    (tmp_path / FILE).write_bytes(b"half of a fi")
    _, anew = know(tmp_path, "http://a:1", named)
    assert anew.urls == "http://a:1"


@pytest.mark.parametrize(
    ("joined", "named", "learned"),
    [
        ("https://a", ["http://b", "https://c"], ["https://c"]),
        ("http://a", ["http://127.0.0.1:7", "http://localhost:7", "http://[::1]:7"], []),
        ("http://127.0.0.1:1", ["http://127.0.0.1:7"], ["http://127.0.0.1:7"]),
        ("http://a", ["ftp://b", "nothing at all"], []),
    ],
)
async def test_what_is_no_use_or_less_secret_is_not_learned(
    tmp_path: Path, joined: str, named: list[str], learned: list[str]
) -> None:
    """LEARN-1"""
    known, http = know(tmp_path, joined, Named(*named))
    await known.ask()
    assert http.urls == " or ".join([joined, *learned])
