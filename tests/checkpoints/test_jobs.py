"""Jobs that save and are started again, by real agents, over the real wire."""

from __future__ import annotations

import json
import sys

from tests.checkpoints.conftest import blobs_of, write_script
from tests.e2e.cluster import Cluster
from tests.proxy import wait_until


def test_what_an_attempt_saves_is_handed_to_the_next(shared: Cluster) -> None:
    cluster = shared
    cluster.add_host("hand", queues=["hand"])
    queue = cluster.set_queue("hand")
    script = write_script(
        cluster.folder,
        "hand",
        """
        import base64, json, os, sys
        import holdfast
        before = holdfast.checkpoint.load()
        data = os.environ.get("CHECKPOINT_DATA")
        print(json.dumps([before and before.decode(), data and base64.b64decode(data).decode(), holdfast.checkpoint.step()]))
        if before is None:
            assert holdfast.checkpoint.save(b"weights of step 7", step=7)
            sys.exit(3)
        """,
    )
    job = cluster.submit(sys.executable, script, queue=queue, retry={"max_retries": 1, "retry_delay": 0.0})
    cluster.until(job, "succeeded", seconds=30)
    first = json.loads(cluster.output(job, attempt=1))
    second = json.loads(cluster.output(job, attempt=2))
    assert first == [None, None, None]
    assert second == ["weights of step 7", "weights of step 7", 7]
    # CKPT: cleared on success, the bytes too
    wait_until(lambda: not blobs_of(cluster, job), what="the blobs of a job that succeeded to be deleted")
