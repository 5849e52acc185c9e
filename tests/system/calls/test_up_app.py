"""`holdfast up --app mytasks` and the example, as the guide has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.up.up_rig import Rig
from tests.waits import wait_until

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "mytasks.py"


@pytest.fixture
def rig(tmp_path: Path, migrated_cluster: Path) -> Iterator[Rig]:
    (tmp_path / "mytasks.py").write_text(EXAMPLE.read_text())
    made = Rig(tmp_path, "--port", "0", "--app", "mytasks", cluster=migrated_cluster)
    try:
        yield made.start()
        made.stop()
    finally:
        made.close()


def test_the_example_and_what_its_change_does(rig: Rig) -> None:
    lines = rig.run_python("mytasks.py").splitlines()
    assert lines[:3] == ["6", "99990000", "item 1 at attempt 2"]
    assert {line.split()[1] for line in lines[3:]} == {"WARM", "MODELS", "LOAD", "ONCE"}
    module = rig.folder / "mytasks.py"
    module.write_text(module.read_text().replace("return 2 * n", "return 3 * n"))
    call = "from mytasks import double; print(double.submit(3).result(timeout=60))"

    def answers_anew() -> bool:  # an executor looks at its files once a second
        return rig.run_python("-c", call) == "9\n"

    wait_until(answers_anew, 60)
    log = b"\n".join(path.read_bytes() for path in rig.data.glob("host/tasks/*/std*"))
    assert b"Traceback" not in log
