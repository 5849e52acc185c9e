"""Jobs that save and are started again, by real agents, over the real wire."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest

from tests.system.checkpoints.conftest import blobs_of, write_script
from tests.system.cluster import Cluster, clean_environment
from tests.waits import wait_exit, wait_until


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
    job = cluster.submit(
        sys.executable, script, queue=queue, retry={"max_retries": 1, "retry_delay": 0.0}
    )
    cluster.until(job, "succeeded", seconds=30)
    first = json.loads(cluster.output(job, attempt=1))
    second = json.loads(cluster.output(job, attempt=2))
    assert first == [None, None, None]
    assert second == ["weights of step 7", "weights of step 7", 7]
    # CKPT: cleared on success, the bytes too
    wait_until(
        lambda: not blobs_of(cluster, job), what="the blobs of a job that succeeded to be deleted"
    )


SAVES_AT_THE_DRAIN = """
    import sys, time
    import holdfast

    step = holdfast.checkpoint.step() or 0
    holdfast.on_drain(lambda: holdfast.checkpoint.save(b"saved at the drain", step=step + 10))
    print("began at", step, flush=True)
    holdfast.beat(step)
    while step < 10:
        time.sleep(0.05)
    """


def test_three_lines_save_at_a_cancel(shared: Cluster) -> None:
    """The cancelled job's last words are kept, and a retry goes on from them."""
    cluster = shared
    cluster.add_host("cancel", queues=["cancel"])
    script = write_script(cluster.folder, "cancel", SAVES_AT_THE_DRAIN)
    job = cluster.submit(
        sys.executable, script, queue=cluster.set_queue("cancel"), grace_seconds=15
    )
    wait_until(lambda: cluster.output(job), what="the job to begin")
    cluster.client.cancel(job)
    cluster.until(job, "cancelled", seconds=30)
    (kept,) = cluster.client.checkpoints(job)
    assert (kept.step, kept.size) == (10, len(b"saved at the drain"))
    cluster.client.retry(job)
    cluster.until(job, "succeeded", seconds=30)
    assert cluster.output(job, attempt=2) == b"began at 10\n"


def test_a_host_that_is_drained_hands_its_work_on(shared: Cluster) -> None:
    cluster = shared
    queue = cluster.set_queue("hosts")
    cluster.add_host("from", queues=["hosts"])
    script = write_script(cluster.folder, "hosts", SAVES_AT_THE_DRAIN)
    job = cluster.submit(sys.executable, script, queue=queue, grace_seconds=15)
    wait_until(lambda: cluster.output(job), what="the job to begin")
    cluster.add_host("to", queues=["hosts"])
    cluster.client.act_on_host("from", "drain", hard=False)
    host = cluster.hosts["from"]
    host.guardian.terminate()  # the machine goes: TERM to the guardian, as a service manager sends it
    cluster.until(job, "succeeded", seconds=40)
    attempts = cluster.client.attempts(job)
    assert [a.host for a in attempts] == ["from", "to"]
    assert cluster.output(job, attempt=2) == b"began at 10\n"


def test_a_killed_agent_loses_no_save(cluster: Cluster) -> None:
    """SAVE-2: killed between the save and the upload, by a controller that cannot be reached; the
    next agent uploads it."""
    host = cluster.add_host("h", proxied=True)
    assert host.proxy is not None
    script = write_script(
        cluster.folder,
        "killed",
        """
        import os, sys, time
        import holdfast
        before = holdfast.checkpoint.load()
        if before is not None:
            print(before.decode())
            sys.exit(0)
        while not os.path.exists(sys.argv[1] + "/go"):
            time.sleep(0.02)
        holdfast.checkpoint.save(b"the only copy", step=1)
        open(sys.argv[1] + "/saved", "w").close()
        while not os.path.exists(sys.argv[1] + "/end"):
            time.sleep(0.02)
        sys.exit(1)
        """,
    )
    retry = {"max_retries": 1, "retry_delay": 0.0}
    job = cluster.submit(sys.executable, script, str(cluster.folder), retry=retry)
    cluster.until(job, "running")
    host.proxy.refuse = True
    host.proxy.cut()
    (cluster.folder / "go").touch()
    wait_until((cluster.folder / "saved").exists, what="the save")
    wait_until(lambda: "waits on its host's disk" in host.log(), what="an upload that fails")
    host.kill_agent()
    assert cluster.client.checkpoints(job) == []
    host.proxy.restore()
    kept = wait_until(
        lambda: cluster.client.checkpoints(job), 30, what="the next agent to upload it"
    )
    assert [c.step for c in kept] == [1]
    (cluster.folder / "end").touch()
    cluster.until(job, "succeeded", seconds=30)
    assert cluster.output(job, attempt=2) == b"the only copy\n"


def test_the_end_waits_for_the_upload_while_the_controller_is_killed(cluster: Cluster) -> None:
    """SAVE-1: the save and the end come together; the controller dies in mid-upload and is started
    again."""
    host = cluster.add_host("h", proxied=True)
    assert host.proxy is not None
    script = write_script(
        cluster.folder,
        "end",
        """
        import hashlib, os, sys
        import holdfast
        before = holdfast.checkpoint.load()
        if before is not None:
            print(len(before), hashlib.sha256(before).hexdigest())
            sys.exit(0)
        data = os.urandom(1 << 20) * 24
        print(len(data), hashlib.sha256(data).hexdigest(), flush=True)
        holdfast.checkpoint.save(data)
        sys.exit(1)
        """,
    )
    host.proxy.delay_seconds = (
        0.05  # a piece of 64 KiB takes that long: the upload lasts for many seconds
    )
    job = cluster.submit(sys.executable, script, retry={"max_retries": 1, "retry_delay": 0.0})
    parts = cluster.folder / "blobs" / ".parts"
    wait_until(
        lambda: parts.is_dir() and any(p.stat().st_size > 1 << 20 for p in parts.iterdir()),
        30,
        what="an upload",
    )
    assert (
        cluster.client.job(job).state == "running"
    )  # its process has ended, and that is not told yet
    cluster.controller.kill()
    cluster.controller.start()
    host.proxy.delay_seconds = 0.0
    cluster.until(job, "succeeded", seconds=60)
    assert cluster.output(job, attempt=2) == cluster.output(job, attempt=1)


def test_a_checkpoint_that_cannot_be_had_is_a_failed_start(cluster: Cluster) -> None:
    """SAVE-3: never a silent start from nothing. When it is forgotten, the job goes on."""
    cluster.add_host("h")
    script = write_script(
        cluster.folder,
        "gone",
        """
        import sys
        import holdfast
        before = holdfast.checkpoint.load()
        print("from", before, flush=True)
        if before is None:
            holdfast.checkpoint.save(b"precious")
            sys.exit(1)
        """,
    )
    job = cluster.submit(sys.executable, script)
    cluster.until(job, "failed", seconds=30)
    (blob,) = blobs_of(cluster, job)
    blob.write_bytes(b"spoilt !")
    cluster.client.retry(job)

    def told() -> str | None:
        return next(
            (a.reason for a in cluster.client.attempts(job) if a.number >= 2 and a.outcome), None
        )

    reason = wait_until(told, 40, what="the failed start")
    assert "checkpoint could not be fetched" in reason
    assert "SHA-256" in reason
    assert cluster.output(job, attempt=2) == b""
    cluster.client.cancel(job)
    cluster.until(job, "cancelled", seconds=30)
    answer = cluster.cli("retry", "--from-scratch", job)
    assert answer.returncode == 0, answer.stderr
    cluster.until(job, "failed", seconds=30)
    last = cluster.client.job(job).attempts
    assert cluster.output(job, attempt=last) == b"from None\n"


@pytest.mark.parametrize("how", ["spoilt", "cut", "emptied", "gone"])
def test_a_newest_checkpoint_that_cannot_be_used_is_skipped_by_itself(
    cluster: Cluster, how: str
) -> None:
    """SAVE-4: the next attempt starts from the one before, says so, and its saves go on from
    there."""
    cluster.add_host("h")
    script = write_script(
        cluster.folder,
        "rot",
        """
        import os, sys, time
        import holdfast
        before, step = holdfast.checkpoint.load(), holdfast.checkpoint.step()
        print("from", step, before, os.environ.get("CHECKPOINT_DATA"), flush=True)
        if step is None:
            for step in (1, 2):
                holdfast.checkpoint.save(b"weights of step %d" % step, step=step)
                while not os.path.exists(f"{sys.argv[1]}/{step}"):
                    time.sleep(0.02)
            sys.exit(1)
        """,
    )
    job = cluster.submit(sys.executable, script, str(cluster.folder))
    newest = []
    for step in (1, 2):
        wait_until(
            lambda s=step: len(cluster.client.checkpoints(job)) == s, 30, what=f"checkpoint {step}"
        )
        newest = [blob for blob in blobs_of(cluster, job) if blob not in newest]
        (cluster.folder / str(step)).touch()
    cluster.until(job, "failed", seconds=30)
    if how == "spoilt":
        newest[-1].write_bytes(b"weights of step 9")
    elif how in ("cut", "emptied"):
        os.truncate(newest[-1], 7 if how == "cut" else 0)
    else:
        newest[-1].unlink()
    cluster.client.retry(job)
    cluster.until(job, "succeeded", seconds=60)
    data = base64.b64encode(b"weights of step 1").decode()
    assert cluster.output(job, attempt=2).decode() == f"from 1 b'weights of step 1' {data}\n"
    (event,) = [e for e in cluster.client.events(job_id=job) if e.kind == "task.checkpoint_skipped"]
    assert event.message.startswith(
        "rank 0 starts from checkpoint 1, of step 1: number 2 cannot be used: "
    )
    words = {
        "spoilt": "SHA-256",
        "cut": "has 7 bytes and not the 17",
        "emptied": "has 0 bytes and not the 17",
        "gone": "is not in",
    }
    assert words[how] in event.message
    assert "cannot be used" in cluster.hosts["h"].log()


def test_training_goes_on_to_the_same_numbers(cluster: Cluster) -> None:
    """Descent of a polynomial, preempted by kill after kill, ends with the weights of an
    undisturbed run."""
    cluster.add_host("h")
    script = write_script(
        cluster.folder,
        "train",
        """
        import json, sys, time
        import holdfast

        saved = holdfast.checkpoint.load()
        step, weights = json.loads(saved) if saved else (0, [0.0, 0.0, 0.0])
        began = step
        points = [(x / 10, 3 * (x / 10) ** 2 - 2 * (x / 10) + 1) for x in range(-10, 11)]
        while step < 300:
            slopes = [0.0, 0.0, 0.0]
            for x, y in points:
                error = weights[0] + weights[1] * x + weights[2] * x * x - y
                for i in range(3):
                    slopes[i] += error * x ** i / len(points)
            weights = [w - 0.1 * s for w, s in zip(weights, slopes)]
            step += 1
            if step % 10 == 0:
                holdfast.checkpoint.save(json.dumps([step, weights]).encode(), step=step)
            if len(sys.argv) > 1 and step == began + 120 and step < 300:
                sys.exit(1)
        print(json.dumps(weights))
        """,
    )
    plain = subprocess.run(
        [sys.executable, script], capture_output=True, check=True, env=clean_environment()
    ).stdout
    job = cluster.submit(
        sys.executable, script, "falls", retry={"max_retries": 5, "retry_delay": 0.0}
    )
    cluster.until(job, "succeeded", seconds=60)
    assert cluster.client.job(job).attempts == 3
    assert cluster.output(job) == plain


def test_the_command_line(shared: Cluster) -> None:
    cluster = shared
    cluster.add_host("shell", queues=["shell"])
    line = (
        f'p="$({sys.executable} -m holdfast.cli checkpoint path)"; if [ -n "$p" ]; then cat "$p"; '
        "exit 0; fi; "
        f"echo from a shell > f; {sys.executable} -m holdfast.cli checkpoint save f --step 3; "
        "exit 1"
    )
    queue = cluster.set_queue("shell")
    job = cluster.submit(shell=line, queue=queue)
    cluster.until(job, "failed", seconds=40)
    answer = cluster.cli("checkpoints", job, "--json")
    (row,) = json.loads(answer.stdout)
    assert (row["step"], row["size"]) == (3, 13)
    assert b"3" in cluster.cli("checkpoints", job).stdout
    answer = cluster.cli("checkpoints", "get", job, "--rank", "0", "-o", "fetched")
    assert answer.returncode == 0, answer.stderr
    assert (cluster.folder / "fetched").read_bytes() == b"from a shell\n"
    assert cluster.cli("checkpoints", "get", job, "--rank", "4", "-o", "nothing").returncode == 3
    assert not (cluster.folder / "nothing").exists()
    (cluster.folder / "mine").write_text("by hand\n")
    assert cluster.cli("checkpoints", "put", job, "mine", "--step", "9").returncode == 0
    assert cluster.cli("retry", job).returncode == 0
    cluster.until(job, "succeeded", seconds=40)
    assert cluster.output(job, attempt=2) == b"by hand\n"


def test_a_host_that_shuts_down_waits_for_its_upload(cluster: Cluster) -> None:
    """TERM to the guardian, and an upload that takes longer than the guardian waits for
    acknowledgements."""
    host = cluster.add_host("slow", proxied=True)
    assert host.proxy is not None
    script = write_script(
        cluster.folder,
        "shutdown",
        """
        import sys, time
        import holdfast

        before = holdfast.checkpoint.path()
        if before is not None:
            print(len(open(before, "rb").read()), holdfast.checkpoint.step())
            sys.exit(0)
        holdfast.on_drain(lambda: holdfast.checkpoint.save(bytes(12 << 20), step=5))
        print("began", flush=True)
        time.sleep(600)
        """,
    )
    job = cluster.submit(sys.executable, script, grace_seconds=15)
    wait_until(lambda: cluster.output(job), what="the job to begin")
    host.proxy.delay_seconds = 0.05
    host.guardian.terminate()
    assert wait_exit(host.guardian, 60) == 0
    (kept,) = cluster.client.checkpoints(job)
    assert (kept.size, kept.step) == (12 << 20, 5)
    cluster.add_host("next")
    cluster.until(job, "succeeded", seconds=30)
    assert cluster.output(job, attempt=2) == f"{12 << 20} 5\n".encode()


def test_a_preempted_job_goes_on_from_its_last_words(cluster: Cluster) -> None:
    cluster.client.set_config({"preemption": True, "preempt_min_run_seconds": 0})
    cluster.add_host("h", cpu_slots=1)
    script = write_script(cluster.folder, "low", SAVES_AT_THE_DRAIN)
    low = cluster.submit(sys.executable, script, preemptible=True, priority=1, grace_seconds=15)
    wait_until(lambda: cluster.output(low), what="the job to begin")
    high = cluster.submit("/bin/true", priority=100)
    cluster.until(high, "succeeded", seconds=30)
    cluster.until(low, "succeeded", seconds=30)
    first, _ = cluster.client.attempts(low)
    assert (str(first.cause), first.charged_to) == ("preempted", "nothing")
    assert cluster.output(low, attempt=2) == b"began at 10\n"
