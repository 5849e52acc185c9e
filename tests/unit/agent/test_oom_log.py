"""The kernel log's word on an OOM kill counts only for the container whose group it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agent.containers.oom_log import OomLog

OWN, OTHER = "a" * 64, "b" * 64
LINE = "6,1569,6452846074,-;oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/libpod-{},task=inside,pid=2150"


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (LINE.format(OWN), True),
        (LINE.format(OTHER), False),
        ("14" + LINE.format(OWN)[1:], False),  # written by a program
        (LINE.format(OWN).replace("oom-kill:", "note:"), False),
    ],
)
def test_only_the_kernels_line_with_the_own_group_counts(
    tmp_path: Path, record: str, named: bool
) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    with OomLog(str(path)) as log:
        path.write_text(record)
        assert log.names_container(OWN) is named
        assert log.names_container("") is False


def test_a_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    with OomLog(str(tmp_path / "none")) as log:
        assert log.names_container(OWN) is False
