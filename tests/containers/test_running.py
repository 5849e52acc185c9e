"""Tasks in real containers, under a real guardian and agent: what goes in, what comes out, how they end."""

from __future__ import annotations

import pytest

from tests.agent.conftest import Host
from tests.agent.fake_controller import FakeController

pytestmark = pytest.mark.slow


def test_a_container_runs_and_its_exit_code_comes_out(controller: FakeController, host: Host, image: str) -> None:
    key = controller.launch("exit", "7", image=image)
    facts = controller.wait_end(key, 30)
    assert (facts.exit_code, facts.signal, facts.stopped, facts.runtime_error) == (7, None, False, None)
    controller.wait_logs(key)
    assert controller.log_of(key) == b"leaving\n"
