"""Runs an example policy as a user does: the script as it ships, in a process of its own, managers and ranks under it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

POLICIES = Path(__file__).resolve().parents[3] / "examples" / "policies"
PATIENCE = 100.0


def run_policy(name: str, folder: Path, *words: str) -> tuple[int, str]:
    """Its exit code, and what it said."""
    command = [sys.executable, str(POLICIES / name), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stderr
