"""The join token on the command line of an agent."""

from __future__ import annotations

import subprocess
import sys

from holdfast.cli.up.agent import hide_argument

CODE = (
    "import sys; from holdfast.cli.up.agent import hide_argument; hide_argument(sys.argv[2]);"
    "print(open('/proc/self/cmdline').read().replace(chr(0), ' '), sys.argv[2])"
)


def test_a_list_of_processes_shows_no_token() -> None:
    """And the process itself still has it."""
    token = "hfj_" + "a1" * 20
    command = [sys.executable, "-c", CODE, "--token", token, "--slots", "1"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert shown[-1] == token
    assert token not in shown[:-1]
    assert shown[-4:-1] == ["*" * len(token), "--slots", "1"]
    hide_argument("a word that is no argument of this process")
