"""SETUP-1 in real containers: an environment is made once for an image, by the image's Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cluster import Cluster
from tests.system.containers import python_image
from tests.system.containers.engines import Engine

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def layer() -> bytes:
    return python_image.make_layer()


@pytest.fixture
def python(engine: Engine, layer: bytes) -> Iterator[str]:
    engine.import_image(python_image.IMAGE, layer, python_image.find_python())
    yield python_image.IMAGE
    engine.forget(python_image.IMAGE)


def test_an_environment_is_made_once_inside_and_the_job_starts_in_its_code(
    cluster: Cluster, engine: Engine, python: str, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/requirements.txt").write_text("one\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(python_image.find_python())
    cluster.set_queue("boxes")
    cluster.add_host("boxes", queues=["boxes"], cpu_slots=3, environment=engine.environment)
    setup = 'echo made; read word < requirements.txt; echo "$word" > "$VIRTUAL_ENV/word"'

    def submit(line: str = setup, path: str = "/lent:/usr/bin:/bin") -> str:
        return cluster.client.submit(
            shell='read a < "$VIRTUAL_ENV/word"; read b < requirements.txt; echo "$a $b"; python -V',
            workdir=tmp_path / "code", setup=line, image=python, runtime=engine.kind,
            queue="boxes", env={"PATH": path}, volumes=[f"{tmp_path}/bin:/lent:ro"],
            retry={"max_retries": 0},
        ).id  # fmt: skip

    first = submit()
    cluster.until(first, "succeeded", seconds=90)
    second, failed, bare = submit(), submit("exit 7"), submit(path="/nowhere")
    cluster.until(second, "succeeded", seconds=90)
    assert b"made\n" in cluster.output(first)
    said = cluster.output(second).splitlines()
    assert said[0] == b"one one"
    assert said[1].startswith(b"Python 3")
    for job, why in ((failed, "exit code 7"), (bare, "its image has no python3")):
        ended = cluster.until(job, "failed", seconds=90)
        assert ended.cause == "setup_failed"
        assert why in ended.reason
