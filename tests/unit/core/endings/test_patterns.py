"""Patterns: what tools really print, what merely sounds like it, and Xids as the driver writes
them."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from holdfast.core.causes import Cause
from holdfast.core.endings.classify import MEASURED, UNMEASURED, classify
from holdfast.core.endings.patterns import CASCADE, CASCADE_RULES, PULL, TEXT, find_ports
from holdfast.core.endings.wording import LogPart
from holdfast.core.endings.xids import (
    XIDS,
    Blame,
    find_xid,
    find_xid_lines,
    parse_pci,
    parse_xid_line,
)
from holdfast.core.facts import TaskFacts
from holdfast.core.logs.lines import MAX_LINE_CHARS, cut_line

# (rule, message): as the tools print them, with addresses and paths as they come.
MESSAGES = [
    # PyTorch
    ("cuda-oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.21 GiB is free."),
    ("cuda-oom", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.65 GiB total capacity; 22.85 GiB already allocated)"),
    ("cuda-oom", "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 0; 10.76 GiB total capacity; 9.60 GiB already allocated; 13.38 MiB free)"),
    ("cuda-oom", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 19.98 GiB of which 6.53 GiB is free."),
    ("cuda-oom", "RuntimeError: MPS backend out of memory (MPS allocated: 8.61 GiB, other allocations: 256.00 KiB, max allowed: 9.07 GiB)."),
    ("cuda-oom", "RuntimeError: CUDA error: out of memory"),
    ("cuda-oom", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("cuda-oom", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 4,000,000,000 bytes (allocated so far: 12,000,000,000 bytes)."),
    ("cuda-oom", "thrust::system::system_error: parallel_for failed: cudaErrorMemoryAllocation: out of memory"),
    ("cuda-oom", "node01:8812:8850 [0] include/alloc.h:185 NCCL WARN Failed to CUDA calloc async 4 bytes"),
    ("cuda-oom", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 11004.00 MiB on device 0: cudaMalloc failed: out of memory"),
    # JAX, XLA, TensorFlow
    ("xla-oom", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes."),
    ("xla-oom", "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 1.50GiB (1610612736B) on device ordinal 0"),
    ("xla-oom", "2019-06-13 01:17:08.886805: E external/org_tensorflow/tensorflow/compiler/xla/python/local_client.cc:672] Execution of replica 0 failed: Resource exhausted: Out of memory while trying to allocate 5520758552 bytes."),
    ("xla-oom", "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[256,112,112,64] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"),
    ("cuda-oom", "2023-02-01 10:11:12.1: I tensorflow/stream_executor/cuda/cuda_driver.cc:733] failed to allocate 2.20G (2357198848 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    # the host's memory
    ("kernel-oom", "[ 5724.104939] Memory cgroup out of memory: Killed process 8123 (python) total-vm:41283904kB, anon-rss:33423360kB, file-rss:71680kB"),
    ("kernel-oom", "[125012.33] Out of memory: Killed process 20914 (python3) total-vm:130846540kB, anon-rss:126334724kB, UID:1000 pgtables:248264kB oom_score_adj:0"),
    ("kernel-oom", "slurmstepd: error: Detected 1 oom_kill event in StepId=8213.0. Some of the step tasks have been OOM Killed."),
    ("host-oom", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array with shape (4000000000,) and data type float64"),
    ("host-oom", "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 40000000000 bytes. Error code 12 (Cannot allocate memory)"),
    ("host-oom", "MemoryError"),
    ("host-oom", "OSError: [Errno 12] Cannot allocate memory"),
    ("host-oom", "terminate called after throwing an instance of 'std::bad_alloc'"),
    ("host-oom", "RuntimeError: DataLoader worker (pid 31337) is killed by signal: Killed. "),
    # a device or its driver
    ("gpu-ecc", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("gpu-ecc", "F0101 12:00:00 cuda_driver.cc:1225] failed to enqueue async memcpy: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"),
    ("gpu-nvlink", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("gpu-lost", "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU"),
    ("gpu-lost", "Unable to determine the device handle for GPU0000:09:00.0: Unknown Error"),
    ("gpu-lost", "Okt 06 17:59:27 balrog kernel: NVRM: GPU 0000:01:00.0: GPU has fallen off the bus."),
    ("gpu-driver-mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
    ("gpu-driver-mismatch", "RuntimeError: CUDA unknown error: Error 803: system has unsupported display driver / cuda driver combination"),
    ("gpu-not-ready", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    ("gpu-not-ready", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."),
    ("gpu-not-ready", "nvidia-container-cli: initialization error: driver error: failed to process request: unknown."),
    ("gpu-unknown", "RuntimeError: CUDA error: unknown error"),
    ("gpu-unknown", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start."),
    ("gpu-busy", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    # the program
    ("cuda-fault", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("cuda-fault", "RuntimeError: CUDA error: device-side assert triggered"),
    ("cuda-fault", "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
    ("cuda-fault", "Memory access fault by GPU node-2 (Agent handle: 0x55fea5592860) on address 0x7fc133800000. Reason: Page not present or supervisor privilege."),
    ("cuda-version", "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    ("cuda-version", "RuntimeError: The NVIDIA driver on your system is too old (found version 10010). Please update your GPU driver"),
    ("cuda-build", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("cuda-build", "AssertionError: Torch not compiled with CUDA enabled"),
    ("no-gpu", "RuntimeError: No CUDA GPUs are available"),
    ("no-gpu", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"),
    ("no-gpu", "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"),
    ("no-gpu", 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'),
    ("disk-full", "OSError: [Errno 28] No space left on device"),
    ("disk-full", "cp: error writing '/scratch/ckpt.pt': No space left on device"),
    ("disk-full", "RuntimeError: [enforce fail at inline_container.cc:603] . PytorchStreamWriter failed writing file data/31: file write failed"),
    ("disk-quota", "OSError: [Errno 122] Disk quota exceeded: '/home/user/.cache/x'"),
    ("shared-memory", "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory."),
    ("port-in-use", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use"),
    ("port-in-use", "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use"),
    ("port-in-use", "listen tcp :8080: bind: address already in use"),
    ("cuda-capture", "RuntimeError: CUDA error: operation not permitted when stream is capturing"),
    ("cuda-oom", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
    ("host-oom", "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory"),
    ("host-oom", "bash: xrealloc: cannot allocate 18446744071562067968 bytes"),
    ("host-oom", "memory allocation of 17179869184 bytes failed"),
    ("host-oom", "fatal error: runtime: out of memory"),
    # around the program
    ("slurm-ended", "slurmstepd: error: *** JOB 9931 ON c12 CANCELLED AT 2024-03-01T11:00:02 DUE TO PREEMPTION ***"),
    ("slurm-time-limit", "slurmstepd: error: *** STEP 9931.0 ON c12 CANCELLED AT 2024-03-01T11:00:02 DUE TO TIME LIMIT ***"),
    ("nccl-port", "c3:77:91 [1] transport/net_ib.cc:95 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error"),
    ("file-system", "OSError: [Errno 5] Input/output error: '/mnt/lustre/shard-3.bin'"),
    ("file-system", "cat: /nfs/cfg.yaml: Stale file handle"),
    ("service-away", "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://models.example/x"),
    ("service-away", "httpx.HTTPStatusError: Server error '503 Service Unavailable' for url 'https://x.example'"),
    ("service-away", "aiohttp.client_exceptions.ClientResponseError: 502, message='Bad Gateway', url='https://x.example'"),
    ("service-away", "openai.RateLimitError: Error code: 429 - {'error': {'message': 'slow down'}}"),
    ("service-away", "curl: (22) The requested URL returned error: 429"),
    ("service-away", "botocore.exceptions.ClientError: An error occurred (ThrottlingException) when calling the GetObject operation"),
    ("slow-down", "urllib.error.HTTPError: HTTP Error 403: rate limit exceeded"),
    ("cut-off", "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x.example', port=443): Read timed out. (read timeout=10)"),
    ("cut-off", "http.client.IncompleteRead: IncompleteRead(100 bytes read, 99900 more expected)"),
    ("memory-words", "duckdb.duckdb.OutOfMemoryException: Out of Memory Error: failed to allocate data of size 256.0 KiB"),
    ("cuda-oom", "ERROR: LoadError: Out of GPU memory trying to allocate 1.000 GiB"),
    # mistakes
    ("option", "grep: unrecognized option '--moon'"),
    ("syntax", "run.sh: line 3: syntax error near unexpected token `done'"),
    ("syntax", "SyntaxError: '(' was never closed"),
    ("javascript", "ReferenceError: x is not defined\n    at main.js:1:1\n\nNode.js v20.1.0"),
    ("refused", "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://models.example/y"),
    ("refused", "urllib.error.HTTPError: HTTP Error 401: Unauthorized"),
    ("refused", "botocore.errorfactory.NoSuchKey: An error occurred (NoSuchKey) when calling the GetObject operation: The specified key does not exist."),
    ("refused", "httpx.HTTPStatusError: Client error '404 Not Found' for url 'https://x.example'"),
    ("refused", "fatal: couldn't find remote ref nosuch"),
    ("refused", "huggingface_hub.errors.GatedRepoError: 403 Client Error. Cannot access gated repo for url https://models.example/x"),
    ("fork", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"),
    ("variable", "RuntimeError: environment variable DATA_ROOT is not set"),
    ("refused-word", "RuntimeError: Unknown model (resnet5o)"),
    ("lacking", "RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
    ("credentials", "botocore.exceptions.NoCredentialsError: Unable to locate credentials"),
    ("login", "fatal: could not read Username for 'https://code.example': terminal prompts disabled"),
    ("denied", "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation: Access Denied"),
    ("configuration", "srun: error: invalid partition specified: gpuu"),
    ("configuration-error", "KeyError: 'MASTER_ADDR'"),
    ("configuration-error", "AssertionError: hidden size must be divisible by the number of heads"),
    ("name", "ImportError: cannot import name 'a' from partially initialized module 'b' (most likely due to a circular import) (/x/b.py)"),
    ("call", "TypeError: 'int' object is not callable"),
    ("configuration", "Could not override 'optim.lrr'."),
    ("configuration-error", "yaml.scanner.ScannerError: mapping values are not allowed here"),
    ("configuration-error", "omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct"),
    ("name", "NameError: name 'optimizr' is not defined"),
    ("name", "AttributeError: module 'torch' has no attribute 'compil'"),
    ("call", "TypeError: Trainer.__init__() got an unexpected keyword argument 'epoch'"),
    ("shapes", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 4x8)"),
    ("state-dict", "RuntimeError: Error(s) in loading state_dict for GPT:"),
    ("backward", "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"),
    # NCCL by itself
    ("nccl-usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
    ("nccl-usage", "node0:1:2 [0] init.cc:916 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"),
    ("nccl-cuda", "ncclUnhandledCudaError: Call to CUDA function failed."),
    ("nccl-system", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."),
    ("nccl-internal", "ncclInternalError: Internal check failed."),
    # a peer died first
    ("nccl-peer", "gpu004:2200689:2200706 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer gpu004.ds-a4-r02.abc.com<55693>"),
    ("nccl-peer", "a100-st-p4d24xlarge-22:183006:183181 [1] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer a100-st-22<47861>"),
    ("nccl-peer", "a100-st-p4d24xlarge-22:183006:183220 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.200.84.247<58355> failed : Broken pipe"),
    ("nccl-peer", "n1:9:9 [4] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.35.1<49189> with error 12, opcode 0, len 0, vendor err 129"),
    ("nccl-peer", "n1:9:9 [4] transport/net_ib.cc:2115 NCCL WARN NET/IB: Got completion from peer 10.4.0.8<40413> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RDMA_WRITE(1)"),
    ("nccl-peer", "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
    ("nccl-timeout", "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."),
    ("gloo-peer", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [18.25.6.30]:28048"),
    ("gloo-peer", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [192.168.70.92]:25266: Connection reset by peer"),
    ("gloo-peer", "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
    ("store-peer", "[rank1]:[W618 10:26:54.029068449 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=105, addr=[localhost]:39468, remote=[::ffff:0.0.0.0]:12201): Connection reset by peer"),
    ("store-peer", "torch.distributed.DistNetworkError: failed to recv, got 0 bytes"),
    ("store-peer", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("xla-peer", "UNAVAILABLE: Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the remote task has failed, got preempted, or crashed unexpectedly."),
    ("xla-peer", "2024-10-09 15:47:38: F external/xla/xla/pjrt/distributed/client.h:80] Terminating process because the JAX distributed service detected fatal errors."),
    ("xla-peer", "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:"),
    ("socket-peer", "ConnectionResetError: [Errno 104] Connection reset by peer"),
    ("socket-peer", "BrokenPipeError: [Errno 32] Broken pipe"),
    ("torchrun-stopped", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1234 got signal: 15"),
    ("mpi-peer", "mpirun noticed that process rank 3 with PID 0 on node n4 exited on signal 9 (Killed)."),
]  # fmt: skip

# Words without the thing: none of these is a message.
PROSE = [
    "INFO tips: reduce the batch size if you run out of memory",
    "If you see CUDA out of memory errors, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    "caught an out of memory condition in the planner; falling back",
    "loading dataset 'out-of-memory-stories' (1200 rows)",
    "WARNING: memory is 93 % full, the OOM killer may come",
    "the MemoryError class is documented below",
    "epoch 3: kernel launches 128, illegal memory access checks passed",
    "Xidian University, 2024",
    "decoded field Xid=79 of the packet",
    "asserting that NVRM and Xid are both words",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "bus 42 fell behind; the GPU has fallen behind schedule",
    "checked ECC: 0 uncorrectable errors",
    "the connection closed by user request",
    "peer review: connection reset by peer pressure is a joke",
    "node0:13571:13571 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
    "kolyoz2:25146:25852 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
    "NCCL version 2.21.5+cuda12.4",
    "downloading manifest: unknown size, unauthorized mirrors skipped, 0 toomanyrequests",
    "Traceback (most recent call last):",
    "ValueError: operands could not be broadcast together with shapes (3,) (4,)",
    "no space left in the calendar",
    "port 29500 in use by nobody",
    "RESOURCE_EXHAUSTED is one of gRPC's status codes",
    "watchdog: all collectives finished in time",
    "the driver and library versions match",
    "TypeError: 'NoneType' object is not subscriptable",
    "AttributeError: 'NoneType' object has no attribute 'json'",
    "ModuleNotFoundError: No module named 'flash_attn'",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/x'",
    "GET /v2/models 404 in 3 ms, answered from the cache",
    "retrying after a 503 of the registry",
    "ValueError: expected 500, got 404",
    "TypeError: 'NoneType' object is not callable",
    "the option --moon is unknown to older versions",
]

REGISTRY = [
    ("no-such-image", "Error: initializing source docker://registry.fedoraproject.org/foobar:latest: reading manifest latest in registry.fedoraproject.org/foobar: manifest unknown"),
    ("no-such-image", "Error response from daemon: manifest for multiarch/alpine:latest not found: manifest unknown: manifest unknown"),
    ("unauthorized", "Error response from daemon: pull access denied for nosuch, repository does not exist or may require 'docker login': denied: requested access to the resource is denied"),
    ("no-such-image", "Error: reading manifest 12-alpine in registry.access.redhat.com/node: name unknown: Repo not found"),
    ("no-such-image", "docker: no matching manifest for linux/arm64/v8 in the manifest list entries."),
    ("unauthorized", "Error: initializing source docker://quay.io/x/y:latest: reading manifest latest in quay.io/x/y: unauthorized: access to the requested resource is not authorized"),
    ("unauthorized", "Error: initializing source docker://php-7.3:fpm: reading manifest fpm in docker.io/library/php-7.3: errors:\ndenied: requested access to the resource is denied\nunauthorized: authentication required"),
    ("rate-limit", "Error response from daemon: toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating and upgrading: https://www.docker.com/increase-rate-limit"),
    ("rate-limit", "failed to copy: httpReadSeeker: failed open: unexpected status code https://registry-1.docker.io/v2/library/rust/manifests/sha256:de6e08: 429 Too Many Requests"),
    ("unreachable", 'Error: initializing source docker://localhost/x:1: pinging container registry localhost: Get "https://localhost/v2/": dial tcp [::1]:443: connect: connection refused'),
    ("unreachable", 'Error response from daemon: Get "https://registry.example/v2/": dial tcp: lookup registry.example on 127.0.0.53:53: no such host'),
    ("tls", 'Error: pinging container registry r.local: Get "https://r.local/v2/": tls: failed to verify certificate: x509: certificate signed by unknown authority'),
    ("tls", 'Error response from daemon: Get "https://r:5000/v2/": http: server gave HTTP response to HTTPS client'),
    ("cut-off", 'Error: writing blob: storing blob to file "/var/tmp/storage3244944871/5": happened during read: unexpected EOF'),
    ("cut-off", "Error: reading blob sha256:037a20cc: Digest did not match, expected sha256:037a20cc, got sha256:e3b0c442"),
    ("cut-off", "filesystem layer verification failed for digest sha256:3d51a39b"),
    ("timeout", 'Error response from daemon: Get "https://registry-1.docker.io/v2/": net/http: TLS handshake timeout'),
    ("timeout", 'Get "https://registry-1.docker.io/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)'),
    ("timeout", 'Error: initializing source: Get "https://10.0.0.9/v2/": dial tcp 10.0.0.9:443: i/o timeout'),
    ("disk-full", "Error: writing blob: adding layer with blob: processing tar file(write /usr/lib/libcudnn.so: no space left on device): exit status 1"),
    ("server-error", "Error: initializing source docker://r/x: received unexpected HTTP status: 503 Service Unavailable"),
]  # fmt: skip

FRAME = 'epoch 3 step 1200 loss 0.731\nTraceback (most recent call last):\n  File "train.py", line 12, in <module>\n{}\n'


@pytest.mark.parametrize(("name", "message"), MESSAGES)
def test_real_messages(name: str, message: str) -> None:
    result = classify(TaskFacts(exit_code=1, log_tail=FRAME.format(message)))
    assert result.rule == f"log-{name}"
    assert str(result.evidence["line"]) in message
    pattern = next(pattern for pattern in TEXT if pattern.name == name)
    assert result.cause is pattern.cause
    assert result.message.startswith(pattern.sentence)


@pytest.mark.parametrize("message", [message for _, message in MESSAGES])
def test_the_same_words_in_a_run_that_succeeded_are_no_failure(message: str) -> None:
    """CLASSIFY-3."""
    found = classify(TaskFacts(exit_code=0, log_tail=FRAME.format(message)))
    assert (found.rule, found.cause) == ("none", Cause.UNKNOWN)


@pytest.mark.parametrize("message", PROSE)
def test_words_alone_are_no_message(message: str) -> None:
    """PATTERN-2."""
    assert find_xid_lines(message) == []
    assert classify(TaskFacts(exit_code=1, log_tail=message)).rule == "exit-code"


@pytest.mark.parametrize(("name", "message"), REGISTRY)
def test_what_registries_say(name: str, message: str) -> None:
    found = classify(TaskFacts(exit_code=125, pull_error=message))
    assert (found.rule, found.cause) == (f"pull-{name}", Cause.IMAGE_PULL_FAILURE)


def test_a_registry_that_says_something_new_is_still_a_pull_failure() -> None:
    found = classify(TaskFacts(pull_error="the registry sang a song"))
    assert (found.rule, found.cause, found.exit_code) == (
        "pull-error",
        Cause.IMAGE_PULL_FAILURE,
        127,
    )
    assert "sang a song" in found.message


def test_what_a_registry_says_is_not_looked_for_in_a_programs_log() -> None:
    for _, message in REGISTRY:
        found = classify(TaskFacts(exit_code=1, log_tail=message))
        assert found.cause is not Cause.IMAGE_PULL_FAILURE


def test_every_pattern_has_a_real_message() -> None:
    assert {name for name, _ in MESSAGES} >= {pattern.name for pattern in TEXT} - {
        "read-only-disk",
        "usage",  # ends with 2: test_wrong_arguments
    }
    assert {name for name, _ in REGISTRY} == {pattern.name for pattern in PULL}


def test_looking_for_words_first_finds_the_same() -> None:
    """The words of an alternative are in everything it matches, so that they may be looked for
    first."""
    for pattern in TEXT + PULL:
        for words, regex in pattern.alternatives:
            for _, message in MESSAGES + REGISTRY:
                assert words in message or regex.search(message) is None
    assert sum(len(words) >= 5 for p in TEXT for words, _ in p.alternatives) == sum(
        len(p.alternatives) for p in TEXT
    )


# ---- last words (PATTERN-4)

ARGPARSE = (
    "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --learning-rate 3\n"
)


def test_wrong_arguments_are_a_mistake_where_the_program_ended_of_them() -> None:
    """PATTERN-4."""
    assert classify(TaskFacts(exit_code=2, log_tail=ARGPARSE)).rule == "log-usage"
    goes_on = ARGPARSE + "step 1\nno rows\n"
    assert classify(TaskFacts(exit_code=1, log_tail=goes_on)).rule == "exit-code"


def test_a_script_of_node_that_failed_before_is_no_cause_of_a_later_end() -> None:
    """PATTERN-4."""
    log = "ReferenceError: x is not defined\n    at main.js:1:1\n\nNode.js v20.1.0\n"
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule == "log-javascript"
    assert classify(TaskFacts(exit_code=1, log_tail=f"{log}no rows\n")).rule == "exit-code"


UNEXPLAINED = (
    "signal",
    "exit-code",
    "log-cuda-fault",
)  # of a capture CUDA says what it says of faults
LAST = [
    m for n, m in MESSAGES for p in TEXT if p.name == n and p.part in (LogPart.LAST, LogPart.RAISED)
]


@pytest.mark.parametrize("message", LAST)
def test_what_programs_print_and_go_on_is_no_cause_of_a_later_end(message: str) -> None:
    """PATTERN-4."""
    log = FRAME.format(message) + "".join(f"step {step} | loss 2.1\n" for step in range(9))
    log += FRAME.format("ValueError: no rows in shard 3")
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule in UNEXPLAINED


@pytest.mark.parametrize("message", LAST)
def test_the_last_words_of_a_program_that_was_killed_explain_nothing(message: str) -> None:
    """PATTERN-4."""
    text = FRAME.format(message)
    for facts in (TaskFacts(signal=9, log_tail=text), TaskFacts(exit_code=137, log_tail=text)):
        assert classify(facts).rule in UNEXPLAINED


# ---- what stands before what (PATTERN-1)


@pytest.mark.parametrize(
    "own",
    [m for n, m in MESSAGES if n in ("cuda-oom", "gpu-ecc", "cuda-fault", "disk-full", "host-oom")],
)
@pytest.mark.parametrize("cascade", [m for n, m in MESSAGES if f"log-{n}" in CASCADE_RULES][::3])
def test_a_ranks_own_fault_is_not_hidden_by_the_connections_it_took_down(
    own: str, cascade: str
) -> None:
    for text in (f"{own}\n{cascade}", f"{cascade}\n{own}"):
        assert classify(TaskFacts(exit_code=1, log_tail=text)).rule not in CASCADE_RULES


def test_ncclremoteerror_inside_an_internal_error_is_a_peers_death() -> None:
    text = (
        "torch.distributed.DistBackendError: NCCL error in: "
        "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, "
        "internal error - please report this issue to the NCCL developers, NCCL version "
        "2.20.5\nncclInternalError: Internal check failed.\n"
        "Last error:\nn1:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by "
        "remote peer n2<47861>"
    )
    assert classify(TaskFacts(signal=6, log_tail=text)).rule == "log-nccl-peer"


def test_the_cascade_is_exported() -> None:
    assert {f"log-{pattern.name}" for pattern in CASCADE} == CASCADE_RULES
    assert {rule.name for rule in MEASURED + UNMEASURED} >= CASCADE_RULES


def test_a_log_never_proves_anything_against_a_host() -> None:
    """PATTERN-3."""
    from holdfast.core.endings.decide import PROOF_AGAINST_HOST

    text = (
        "\n".join(message for _, message in MESSAGES)
        + "\nNVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
    )
    assert classify(TaskFacts(exit_code=1, log_tail=text)).rule not in PROOF_AGAINST_HOST
    assert {"unkillable", "gpu-xid", "gpu-ecc", "gpu-lost"} == PROOF_AGAINST_HOST
    assert {rule.name for rule in MEASURED + UNMEASURED} >= PROOF_AGAINST_HOST


# ---- evidence


def test_evidence_is_one_line_bounded_and_plain() -> None:
    noise = "\x1b[31mRuntimeError:\x1b[0m CUDA error: out of memory\u202e\x07"
    found = classify(TaskFacts(exit_code=1, log_tail=f"before\n{noise}\nafter"))
    assert found.evidence["line"] == "RuntimeError: CUDA error: out of memory"
    long = "x" * 5000 + " CUDA error: out of memory " + "y" * 5000
    line = str(classify(TaskFacts(exit_code=1, log_tail=long)).evidence["line"])
    assert len(line) <= MAX_LINE_CHARS
    assert "CUDA error: out of memory" in line


def test_cutting_at_the_edges() -> None:
    assert cut_line("one", 0, 3) == "one"
    assert cut_line("a\nbcd\ne", 2, 5) == "bcd"
    assert cut_line("bcd\n", 0, 4) == "bcd"


@pytest.mark.parametrize(
    "text",
    [
        "a" * 16_000,
        "NCCL WARN " * 1600,
        "gloo/transport/" * 1000,
        ": " * 8000,
        "x\n" * 8000,
        "WorkNCCL(" * 1700,
    ],
)
def test_no_log_makes_the_shipped_patterns_slow(text: str) -> None:
    began = time.process_time()
    for pattern in (*TEXT, *PULL):
        pattern.search(text[:16_000])
    assert (
        time.process_time() - began < 2.0
    )  # some hundredths of a second; a pattern that blows up takes minutes


# ---- Xids


@pytest.mark.parametrize(
    ("line", "pci", "code"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the "
        "bus.", (0, 0x3B, 0), 79),
        ("[111.111] NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has "
        "fallen off the bus.", (0, 5, 0), 79),
        ("[...] NVRM: Xid (0000:03:00): 14, Channel 00000001", (0, 3, 0), 14),
        ("kernel: NVRM: Xid (PCI:0000:9b:00): 119, pid=2131, name=nvidia-smi, Timeout after 6s of "
        "waiting for RPC response", (0, 0x9B, 0), 119),
        ("NVRM: Xid (PCI:0001:00:00): 94, pid=7194, name=python3, Ch 00000008", (1, 0, 0), 94),
        ("NVRM: Xid (PCI:0000:00:06): 31, pid=79749, name=exe, Ch 0000000a, intr 00000000. MMU "
        "Fault: ENGINE GRAPHICS", (0, 0, 6), 31),
        ("NVRM: Xid (PCI:0000:5d:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 06 (0x004505c6 "
        "0x00000000)", (0, 0x5D, 0), 149),
    ],
)  # fmt: skip
def test_xid_lines(line: str, pci: tuple[int, int, int], code: int) -> None:
    assert parse_xid_line(line) == (pci, code)


@pytest.mark.parametrize(
    "line",
    ["NVRM: Xid error: xyz, invalid data", "NVRM: Xid (invalid): 79", "Xid (PCI:0000:3b:00): 79, in somebody's prose",
     "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"],
)  # fmt: skip
def test_lines_that_are_no_xids(line: str) -> None:
    assert parse_xid_line(line) is None


def test_pci_addresses_as_nvml_writes_them() -> None:
    assert parse_pci("00000000:3B:00.0") == (0, 0x3B, 0)
    assert parse_pci("0001:00:1E.0") == (1, 0, 0x1E)
    assert parse_pci("GPU-1234") is None


def test_whose_failure_an_xid_is() -> None:
    """By NVIDIA's catalogue: what asks for a reset or a restart is the hardware's; what asks to
    restart the program is its own."""
    for code in (48, 64, 74, 79, 94, 95, 119, 120, 136, 140, 143, 149):
        assert XIDS[code].blame is Blame.HARDWARE, code
        assert XIDS[code].cause is Cause.GPU_FAULT
        assert XIDS[code].action
    for code in (13, 31, 43, 69, 142):
        assert XIDS[code].blame is Blame.APPLICATION, code
        assert XIDS[code].cause is Cause.NONZERO_EXIT
    for code in (45, 63, 92, 154):
        assert XIDS[code].blame is Blame.NOTICE, code
    assert all(code == xid.code and xid.name for code, xid in XIDS.items())


def test_a_code_nobody_knows_is_nobodys() -> None:
    assert find_xid([999, 45, 79, 48], Blame.HARDWARE) == XIDS[79]
    assert find_xid([999, 63], Blame.HARDWARE) is None


def test_xids_in_a_log_follow_the_table() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=python"
    hard = classify(TaskFacts(exit_code=1, log_tail=line.format(48)))
    assert (hard.rule, hard.cause, hard.evidence["xid"]) == ("log-xid", Cause.GPU_FAULT, 48)
    own = classify(TaskFacts(signal=6, log_tail=line.format(31)))
    assert (own.rule, own.cause, own.evidence["xid"]) == ("log-xid-own", Cause.NONZERO_EXIT, 31)
    assert "SIGABRT" in own.message
    assert classify(TaskFacts(exit_code=1, log_tail=line.format(63))).rule == "exit-code"
    both = classify(TaskFacts(exit_code=1, log_tail=line.format(31) + "\n" + line.format(79)))
    assert both.evidence["xid"] == 79


def test_every_alternative_compiles_without_a_warning() -> None:
    for pattern in TEXT + PULL:
        for _, regex in pattern.alternatives:
            assert isinstance(regex, re.Pattern)
            assert regex.search("") is None


def test_the_page_of_xids_has_every_code() -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "xid.md").read_text()
    rows = {int(code): name for code, name in re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.M)}
    assert rows == {code: xid.name for code, xid in XIDS.items()}


TORCH_PORT = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
    "network address. port: {0}, "
    "useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use"
)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (TORCH_PORT.format(29500), {29500}),
        ("OSError: [Errno 98] Address already in use", set()),
        ("OSError: [Errno 98] error while attempting to bind on address ('::1', 8000, 0, 0): "
        "address already in use", {8000}),
        ("OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 80): address "
        "already in use", {80}),
        ("12:04:59 [rank0]:[W1121 socket.cpp:1030] bind to 10.0.0.7:23456: Address already in "
        "use", {23456}),
        ("listen tcp :8080: bind: address already in use", {8080}),
    ],
)  # fmt: skip
def test_the_ports_a_message_names(line: str, named: set[int]) -> None:
    assert find_ports(line) == named


@pytest.mark.parametrize(
    ("line", "port", "seconds", "cause"),
    [
        (TORCH_PORT.format(23456), 23456, 3.0, Cause.AGENT_TRANSIENT),
        ("OSError: [Errno 98] Address already in use", 23456, 59.0, Cause.NONZERO_EXIT),
        (
            f"OSError: [Errno 98] Address already in use\n{TORCH_PORT.format(23456)}",
            23456,
            59.0,
            Cause.AGENT_TRANSIENT,
        ),
        (TORCH_PORT.format(8080), 23456, 3.0, Cause.NONZERO_EXIT),  # a port of its own choice
        (
            "OSError: [Errno 98] Address already in use",
            0,
            3.0,
            Cause.NONZERO_EXIT,
        ),  # another rank than the first
        (TORCH_PORT.format(23456), 23456, 61.0, Cause.NONZERO_EXIT),  # it had it, and let go of it
        ("ValueError: bad port", 23456, 3.0, Cause.NONZERO_EXIT),
    ],
)
def test_a_rendezvous_port_that_was_taken_is_no_failure_of_the_job(
    line: str, port: int, seconds: float, cause: Cause
) -> None:
    facts = TaskFacts(
        exit_code=1, log_tail=f"Traceback\n{line}\n", rendezvous_port=port, runtime_seconds=seconds
    )
    found = classify(facts)
    assert found.cause is cause
    assert (found.rule == "rendezvous-port") is (cause is Cause.AGENT_TRANSIENT)
    assert (
        classify(TaskFacts(exit_code=0, log_tail=line, rendezvous_port=port)).rule
        != "rendezvous-port"
    )
