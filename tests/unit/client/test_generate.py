"""The blocking client is what the generator makes of the asyncio one."""

from __future__ import annotations

from pathlib import Path

from holdfast.client.generate import make_all, make_synchronous


def test_the_blocking_client_is_up_to_date() -> None:
    made = make_all()
    kept = {path: path.read_text() for path in next(iter(made)).parent.glob("*.py")}
    assert kept == made, "run `python -m holdfast.client.generate`"


def test_await_goes_and_names_change() -> None:
    source = (
        "import asyncio\n"
        "import time\n\n\n"
        "class AsyncThing:\n"
        '    """Sleeps, as `AsyncThing`."""\n\n'
        "    async def nap(self, feed: Feed) -> None:\n"
        "        await asyncio.sleep(time.monotonic())\n"
        "        async for one in feed:\n"
        "            yield one\n"
    )
    made = make_synchronous(source, Path("thing.py"))
    assert "async" not in made.partition("\n")[2]
    assert made.endswith(
        "import time\n\n\n"
        "class Thing:\n"
        '    """Sleeps, as `Thing`."""\n\n'
        "    def nap(self, feed: Feed) -> None:\n"
        "        time.sleep(time.monotonic())\n"
        "        yield from feed\n"
    )
