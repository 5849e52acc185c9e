"""What tests wait with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waits import run_patiently

# Reads only once it has been waited for in vain.
LATE_READER = "import sys, time; time.sleep(1.5); sys.stdout.write(sys.stdin.read()); sys.exit(3)"


@pytest.mark.slow
def test_a_program_that_reads_late_has_all_of_its_input() -> None:
    text = "x" * (1 << 20)
    words = [sys.executable, "-c", LATE_READER]
    done = run_patiently(words, seconds=30, input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, text, "")


@pytest.mark.slow
def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_patiently(["sleep", "600"], seconds=0.1)
