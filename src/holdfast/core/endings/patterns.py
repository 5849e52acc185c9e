"""The messages of tools whose work fails, as data: a regular expression, its cause, and a sentence.

PATTERN-1  The first match in the order of these tables wins: what explains a failure stands before
           what follows from one, and a peer's death stands last, so that the connections a rank
           took down never hide its own fault.
PATTERN-2  A pattern matches a message as the tool prints it, never the words alone: a log that
           talks about running out of memory did not run out of it. A Python traceback is no cause
           by itself.
PATTERN-3  A job can make up its log. So a log may decide a cause, and never quarantines a host.
PATTERN-4  A message counts only at the end of a log (LAST-1). Words that programs often print and
           go on (an answer of a server, a file that cannot be read, an exception) count only as the
           last words of a program, or in the exception that ended it.

The messages are PyTorch's, JAX's, TensorFlow's, CuPy's, NCCL's (RCCL prints the same), gloo's,
CUDA's, ROCm's, podman's, docker's and the Linux kernel's;
`tests/unit/core/endings/test_patterns.py` holds real ones.
"""

import re

from holdfast.core.causes import Cause
from holdfast.core.endings.mistakes import MISTAKES
from holdfast.core.endings.wording import LogPart, Pattern, expect_end, expect_last

_FAULT, _OOM = Cause.GPU_FAULT, Cause.OOM_KILLED
_OWN, _PULL = Cause.NONZERO_EXIT, Cause.IMAGE_PULL_FAILURE
_MISTAKE, _AWAY = Cause.PROGRAM_ERROR, Cause.AGENT_TRANSIENT

HARDWARE: tuple[Pattern, ...] = (
    expect_end("gpu-ecc", _FAULT, "the GPU's memory has an uncorrectable error (ECC)",
        r"uncorrectable ECC error "
        r"encountered", r"\bCUDA_ERROR_ECC_UNCORRECTABLE\b", r"\bcudaErrorECCUncorrectable\b",
        r"Uncorrectable ECC error detected", r"\bhipErrorECCNotCorrectable\b"),
    expect_end("gpu-nvlink", _FAULT, "an NVLink failed with an uncorrectable error",
        r"uncorrectable NVLink error detected during the "
        r"execution", r"\bCUDA_ERROR_NVLINK_UNCORRECTABLE\b",
        r"\bcudaErrorNvlinkUncorrectable\b"),
    expect_end("gpu-lost", _FAULT, "the GPU fell off the bus",
        r"NVRM: [^\n]{0,80}GPU has fallen off the "
        r"bus", r"GPU is lost\.\s{1,2}Reboot the system to recover this GPU",
        r"Unable to determine the device handle for GPU[^\n]{0,40}: (?:GPU is lost|Unknown "
        r"Error|GPU requires reset)",
        r"amdgpu [0-9a-f:.]{7,15}: (?:amdgpu: )?(?:GPU reset\(\d{1,6}\) failed|device lost from "
        r"bus!)"),
    expect_end("gpu-driver-mismatch", _FAULT, "this host's GPU driver and its library are of different versions; it must be rebooted",
        r"Driver/library version "
        r"mismatch", r"\bcudaErrorSystemDriverMismatch\b", r"\bCUDA_ERROR_SYSTEM_DRIVER_MISMATCH\b",
        r"system has unsupported display driver / cuda driver combination",
        r"nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"),
    expect_end("gpu-not-ready", _FAULT, "this host's GPUs are not ready: its driver or fabric manager does not run",
        r"Error 802: system not yet "
        r"initialized", r"\bCUDA_ERROR_SYSTEM_NOT_READY\b", r"\bcudaErrorSystemNotReady\b",
        r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
        r"nvidia-container-cli: initialization error: (?:driver error|nvml error|cuda "
        r"error|driver rpc error|load library failed)",
        r"Failed to initialize NVML: (?:Unknown Error|GPU is lost|Driver Not Loaded)"),
    expect_end("gpu-unknown", _FAULT, "the GPU or its driver failed in a way that CUDA does not name",
        r"CUDA error: unknown error", r"CUDA unknown error - this may be due to", r"\bCUDA_ERROR_UNKNOWN\b",
        r"CUDA error: hardware stack error", r"\bcudaErrorHardwareStackError\b",
        r"\bCUDA_ERROR_HARDWARE_STACK_ERROR\b"),
    expect_end("gpu-busy", _FAULT, "the GPU it was given is held by another program or not available",
        r"CUDA-capable device\(s\) is/are busy or "
        r"unavailable", r"\bCUDA_ERROR_DEVICE_UNAVAILABLE\b",
        r"\bcudaErrorDevicesUnavailable\b"),
)  # fmt: skip
"""Messages of a device or driver that failed."""

MEMORY: tuple[Pattern, ...] = (
    expect_end(
        "cuda-oom",
        _OOM,
        "the GPU's memory ran out",
        r"(?:CUDA|HIP|XPU|MPS backend) out of memory[.:]? ?\(?(?:Tried to allocate|MPS allocated)",
        r"torch\.(?:cuda\.)?OutOfMemoryError: ",
        r"CUDA (?:driver )?error: out of memory",
        r"HIP error: out of memory",
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b",
        r"\bcudaErrorMemoryAllocation\b",
        r"\bhipErrorOutOfMemory\b",
        r"\bCU(?:BLAS|SOLVER|SPARSE|DNN|FFT)_STATUS_ALLOC_FAILED\b",
        r"\bHSA_STATUS_ERROR_OUT_OF_RESOURCES\b",
        r"cupy\.cuda\.memory\.OutOfMemoryError: ",
        r"ggml_backend_cuda_buffer_type_alloc_buffer: allocating [^\n]{1,60} failed",
        r"NCCL WARN (?:Cuda failure (?:2 )?'out of memory'|Failed to CUDA (?:calloc|malloc))",
        r"No available memory for the cache blocks",
        r"\blarger than the (?:maximum number of tokens that can be stored in|available) KV cache",
        r"is less than desired GPU memory utilization",
        r"Make sure you have enough GPU RAM",
        r"Out of memory error on GPU \d",
        r"\b[Cc]udaMalloc (?:(?:retry )?failed: out of memory|\d{1,20} bytes)",
        r"Cuda Runtime \(out of memory\)",
        r"failed to allocate buffer for kv cache",
        r"Out of GPU memory trying to allocate",
    ),
    expect_end(
        "xla-oom",
        _OOM,
        "the GPU's memory ran out",
        r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate|Error "
        r"(?:loading|allocating)|XLA:TPU compile permanent error\. Ran out)",
        r"Resource exhausted: (?:Out of memory while|OOM when allocating)",
        r"ResourceExhaustedError:[^\0]{0,200}(?:OOM when allocating|failed to allocate memory)",
        r"OOM when allocating tensor with shape ?\[?",
    ),
    expect_end(
        "kernel-oom",
        _OOM,
        "the kernel killed it for memory",
        r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d{1,10}",
        r"\boom_reaper: reaped process \d{1,10}",
        r"slurmstepd: error: Detected \d{1,9} oom[-_]kill event",
    ),
    expect_end(
        "host-oom",
        _OOM,
        "the host's memory ran out",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        r"_ArrayMemoryError: Unable to allocate",
        r"(?m:^MemoryError(?::|$))",
        r"(?m:^(?:OSError|RuntimeError|BlockingIOError): [^\n]{0,60}Cannot allocate memory)",
        r"terminate called after throwing an instance of 'std::bad_alloc'",
        r"java\.lang\.OutOfMemoryError: ",
        r"FATAL ERROR: [^\n]{0,100}JavaScript heap out of memory",
        r"fatal error: runtime: out of memory",
        r"(?m:^memory allocation of \d{1,20} bytes failed)",
        r"(?m:\bx\w{0,4}alloc: cannot allocate \d{1,20} bytes)",
        r"(?m:: (?:fork: )?(?:retry: )?Cannot allocate memory$)",
        r"ray\.exceptions\.OutOfMemoryError: ",
        r"DataLoader worker \(pid[^\n]{0,20}\) is killed by signal: Killed",
        r"(?m:^Error: cannot allocate vector of size )",
        r"(?m:^ERROR: [^\n]{0,40}\bOutOfMemoryError\(\))",
        r"ObjectStoreFullError: ",
    ),
    Pattern(
        "memory-words",
        (
            r"\b[Oo]ut of (?:(?:gpu|GPU|device|host|cuda|CUDA|system) )?[Mm]emory\b",
            r"\bout_of_memory\b",
            r"\bOutOfMemory\w{0,20}\b",
            r"\b(?:[Ii]nsufficient|[Nn]ot enough) (?:gpu |GPU |device )?memory\b",
            r"\b(?:[Ff]ailed|[Uu]nable) to allocate (?:memory\b|(?:data of size )?\d)",
            r"\bmalloc of size \d{1,20} failed\b",
            r"\bMaximum pool size exceeded\b",
            r"\b[Mm]emory exhausted\b",
        ),
        _OOM,
        "memory ran out",
        part=LogPart.RAISED,
    ),
)
"""Messages of a program whose memory ran out."""

OWN: tuple[Pattern, ...] = (
    expect_last("cuda-capture", _MISTAKE, "it did what CUDA does not allow while a graph is captured",
        r"operation not permitted when stream is capturing", r"\bcudaErrorStreamCapture\w{1,40}",
        r"\bCUDA_ERROR_STREAM_CAPTURE_\w{1,40}"),
    expect_end("shared-memory", _OWN, "its shared memory (/dev/shm) is too small",
        r"It is possible that dataloader's workers are out of shared memory",
        r"DataLoader worker \(pid[^\n]{0,20}\) is killed by signal: Bus error",
        r"NCCL WARN Error: failed to extend "
        r"/dev/shm/nccl-", r"unable to (?:open|write to|mmap|resize) (?:file|shared memory object) </torch_"),
    expect_end("disk-full", _OWN, "a disk of its host is full",
        r"\[Errno 28\] No space left on device", r"\bENOSPC\b", r"(?m:: No space left on device$)",
        r"\(os error 28\)", r"PytorchStreamWriter failed writing file"),
    expect_end("disk-quota", _OWN, "its disk quota is used up", r"\[Errno 122\] Disk quota exceeded", r"(?m:: Disk quota exceeded$)"),
    expect_end("read-only-disk", _OWN, "a file system of its host is read-only", r"\[Errno 30\] Read-only file system"),
    expect_end("cuda-fault", _OWN, "a GPU kernel did something illegal",
        r"CUDA error: (?:an illegal memory access was encountered|unspecified launch "
        r"failure|misaligned address"
        r"|an illegal instruction was encountered|invalid program counter|device-side assert "
        r"triggered|operation not permitted)",
        r"\bCUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION|ASSERT)\b",
        r"\bcudaError(?:IllegalAddress|LaunchFailure|MisalignedAddress|IllegalInstruction|Assert)\b",
        r"Memory access fault by GPU "
        r"node-\d{1,4}", r"HIP error: (?:an illegal memory access|unspecified launch failure)",
        r"\bhipErrorIllegalAddress\b", r"\bHSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)\b"),
    expect_end("cuda-version", _OWN, "this host's GPU driver is too old for the program's CUDA",
        r"CUDA driver version is insufficient for CUDA runtime "
        r"version", r"\bcudaErrorInsufficientDriver\b",
        r"The NVIDIA driver on your system is too old \(found version \d",
        r"nvidia-container-cli: requirement error: unsatisfied condition: cuda"),
    expect_end("cuda-build", _OWN, "the program was not built for this GPU",
        r"no kernel image is available for execution on the "
        r"device", r"\bcudaErrorNoKernelImageForDevice\b",
        r"Torch not compiled with CUDA enabled"),
    expect_end("no-gpu", _OWN, "the program found no GPU",
        r"No CUDA GPUs are "
        r"available", r"no CUDA-capable device is detected", r"\bCUDA_ERROR_NO_DEVICE\b", r"\bcudaErrorNoDevice\b",
        r"Found no NVIDIA driver on your "
        r"system", r"No HIP GPUs are available", r"no ROCm-capable device is detected",
        r"Unknown backend:? '?(?:cuda|gpu|rocm)'? requested, but no platforms",
        r"could not select device driver \"\" with capabilities: "
        r"\[\[gpu\]\]", r"CUDA error: invalid device ordinal"),
    expect_last("nccl-usage", _MISTAKE, "NCCL was used in a way that is not allowed",
        r"\bncclInvalidUsage\b", r"\bncclInvalidArgument\b", r"NCCL WARN Duplicate GPU detected"),
    expect_end("nccl-cuda", _OWN, "a CUDA call of NCCL failed", r"\bncclUnhandledCudaError\b", r"NCCL WARN Cuda failure"),
    expect_end("port-in-use", _OWN, "a port it wanted is in use",
        r"EADDRINUSE", r"\[Errno 98\] Address already in use", r"The server socket has failed to listen on any local network address",
        r"error while attempting to bind on address \([^\n]{1,80}\): address already in "
        r"use", r"\bbind\b[^\n]{0,60}: [Aa]ddress already in use"),
)  # fmt: skip
"""Messages of a failure of the program itself or its surroundings, which say more than an exit
code."""

SURROUNDINGS: tuple[Pattern, ...] = (
    expect_end("slurm-ended", _AWAY, "Slurm ended it for a reason that is not its own",
        r"CANCELLED AT \S{1,40} DUE TO PREEMPTION", r"CANCELLED AT \S{1,40} DUE TO NODE FAILURE",
        r"srun: error: Node failure on "),
    expect_end("slurm-time-limit", Cause.TIME_LIMIT, "Slurm's time limit was reached",
        r"CANCELLED AT \S{1,40} DUE TO TIME LIMIT"),
    Pattern("nccl-port", (r"NCCL WARN NET/IB ?: [^\n]{1,60}Got async event ?: port error",
        r"NCCL WARN NET/IB ?: [^\n]{1,60}port went down"), _AWAY,
        "a network port of its host failed", elsewhere=True),
    expect_last("file-system", _AWAY, "a file system of its host does not answer",
        r"\[Errno (?:5|107|108|116|117|121)\] ", r": Input/output error", r": Stale (?:NFS )?file handle",
        r": Transport endpoint is not connected", r": Cannot send after transport endpoint shutdown",
        r": Structure needs cleaning", r": Remote I/O error", elsewhere=True),
    expect_last("service-away", _AWAY, "a service that it needs does not answer for a while",
        r"\b(?:429|50[0234]) (?:Client|Server) Error\b", r"HTTP Error (?:429|50[0234]): ",
        r"The requested URL returned error: (?:429|50[0234])", r"\bERROR (?:429|50[0234]): ",
        r"\b429\b\W{0,3}(?:message=\W)?Too Many Requests", r"\b500\b\W{0,3}(?:message=\W)?Internal Server Error",
        r"\b502\b\W{0,3}(?:message=\W)?Bad Gateway", r"\b503\b\W{0,3}(?:message=\W)?Service (?:Temporarily )?Unavailable",
        r"\b504\b\W{0,3}(?:message=\W)?Gateway Time-?[oO]ut", r"Error code: (?:429|50[0234])\b",
        r"Temporary failure in name resolution", r"Socket timed out on send/recv operation",
        r"An error occurred \((?:SlowDown|ServiceUnavailable|InternalError|RequestTimeout|Throttl\w{0,20}|\w{0,20}LimitExceeded|50[03])\) when calling",
        r"google\.api_core\.exceptions\.(?:ServiceUnavailable|TooManyRequests|InternalServerError|BadGateway|GatewayTimeout"
        r"|DeadlineExceeded|RetryError): ",
        r"\b(?:408|52\d) (?:Client|Server) Error\b", r"\b503 Backend Error\b", r"\bcode: 529\b", r"\btoo many \d{3} error responses",
        r"StatusCode\.(?:UNAVAILABLE|DEADLINE_EXCEEDED)\b", r"\bServerBusy\b", r"\bOperationTimedOut\b", r"\bserver is busy\b", r"\bservice is temporarily unavailable\b",
        r"\bdatabase system is (?:starting up|shutting down|in recovery)", r"\bis loading the dataset in memory",
        r"trying to locate the file on the Hub and we cannot find", r"The actor is dead because its node has died"),
    expect_last("slow-down", _AWAY, "a service asks it to come more slowly",
        r"\b[Rr]ate limit(?:ed|ing|s)?\b", r"\bRate Limit(?:ed| Exceeded)\b", r"\brateLimitExceeded\b", r"\bRateLimit\w{0,40}",
        r"\bToo [Mm]any [Rr]equests\b", r"\btoo many requests\b", r"\bTOO MANY REQUESTS\b", r"\bRate exceeded\b", r"\bRequest limit exceeded\b",
        r"\breduce your request rate\b", r"\bslow down\b", r"\bThrottling\w{0,40}", r"oo many users have (?:viewed|downloaded)\b"),
    expect_last("cut-off", _AWAY, "a connection to a service timed out or broke off",
        r"(?m:^(?!asyncio|subprocess|multiprocessing|concurrent|torch|ray\b|filelock|billiard|celery)[a-z_]\w{0,60}"
        r"(?:\.\w{1,60}){0,5}\.\w{0,40}Timeout\w{0,20}(?:: |$))",
        r"(?m:^TimeoutError: (?:\[Errno 110\]|timed out$|The \w{1,20} operation timed out))", r"urlopen error (?:\[Errno 110\]|timed out|_ssl)",
        r"\bRead timed out\.", r"\b(?:Connect|Read)TimeoutError\(", r"\b(?:Read|Connect) timeout on endpoint URL\b",
        r"\bIncompleteRead\(", r"\bConnection broken: ", r"\('Connection aborted\.'", r"Remote end closed connection without response",
        r"\bServer disconnected\b", r"Response payload is not completed", r"retrieval incomplete: got only", r"without sending complete message body",
        r"EOF occurred in violation of protocol", r"Could not connect to the endpoint URL", r"before we received a valid response from endpoint",
        r"An error occurred while reading from response stream", r"azure\.core\.exceptions\.(?:ServiceResponse|ServiceRequest|IncompleteRead)\w{0,20}: ",
        r"\bAPI(?:Connection|Timeout)Error: ", r"\b\w{0,40}ConnectionLost\w{0,20}: ", r"\bCommError: [^\n]{0,80}(?:timed out|communicating)",
        r"curl: \((?:18|28|52|55|56|92)\) ", r"Read error at byte \d", r"fatal: early EOF", r"the remote end hung up unexpectedly",
        r"rsync: [^\n]{0,20}connection unexpectedly closed", r"rsync error: timeout ", r"ssh: connect to host [^\n]{1,200}: Connection timed out",
        r"Error reading SSH protocol banner", r"(?m:^(?![^\n]{0,400}(?:NCCL|gloo|c10d|Socket))[^\n]{0,400}\bConnection timed out\b)", r"\bECONNRESET\b", r"\bETIMEDOUT\b", r"\bHTTP 000 CONNECTION FAILED\b", r"\bIncompleteReadError: ", r"curl [^\n]{1,200}\bexit 28\b", r"server closed the connection unexpectedly", r"\bLost connection to MySQL server\b",
        r"\bMySQL server has gone away\b"),
)  # fmt: skip
"""Messages of machines and services around the program that failed, and will come back."""

CASCADE: tuple[Pattern, ...] = (
    expect_end("nccl-peer", _OWN, "a peer's NCCL connection closed: a neighbour died first",
        r"NCCL WARN (?:NET/\w{1,16} ?: )?(?:Net ?: )?(?:socketProgress(?:Opt)?: )?Connection "
        r"closed by (?:remote )?peer",
        r"NCCL WARN [^\n]{0,120}(?:Call to (?:recv|send|connect)[^\n]{0,120} failed ?: "
        r")?(?:Connection reset by peer|Broken pipe)",
        r"NCCL WARN [^\n]{0,60}(?:socketPollConnect|socketStartConnect)[^\n]{0,160}(?:Connection "
        r"refused|timed out|exceeded (?:error )?retr)",
        r"NCCL WARN NET/IB ?: Got completion from peer [^\n]{1,80} with "
        r"(?:status=IBV_WC_RETRY_EXC_ERR|error (?:5|12)\b|status=(?:5|12)\b)",
        r"\bncclRemoteError\b", r"NCCL communicator was aborted on rank \d", cascade=True),
    expect_end("nccl-timeout", _OWN, "a collective timed out: a neighbour died or fell behind",
        r"Watchdog caught collective operation timeout: "
        r"WorkNCCL", r"Timeout at NCCL work: \d", r"ncclCommWatchdog[^\n]{0,80}timed out",
        r"WorkNCCL\([^\n]{1,300}\) (?:ran for|timed out in blocking wait)", cascade=True),
    expect_end("gloo-peer", _OWN, "a peer's gloo connection closed: a neighbour died first",
        r"gloo/transport/\w{1,16}/[\w.]{1,40}:\d{1,6}\] (?:Connection closed by peer|Read "
        r"error|Write error)",
        r"gloo/transport/\w{1,16}/[\w.]{1,40}:\d{1,6}\] Connect(?:ion)? (?:timeout|refused|reset)",
        r"gloo/transport/[^\n]{1,60}\] Timed out waiting \d{1,9}ms for (?:recv|send) operation",
        r"Gloo connectFullMesh failed "
        r"with", r"gloo/rendezvous/[^\n]{1,60}\] Wait timeout", cascade=True),
    expect_end("store-peer", _OWN, "the job's first rank is gone: its store closed the connection",
        r"(?:recvValue|sendBytes|recvVector) failed on SocketImpl\([^\n]{1,200}\): (?:Connection "
        r"reset|Broken pipe|Failed to recv)",
        r"DistNetworkError: (?:failed to recv, got 0 bytes|Connection reset by peer|Broken "
        r"pipe|The client socket has)",
        r"RuntimeError: (?:Connection reset by peer|Broken pipe|failed to recv, got 0 "
        r"bytes|Socket Timeout|Stop_waiting response is expected)",
        r"DistStoreError: (?:Timed out after \d{1,9} seconds waiting for clients|wait timeout "
        r"after|Socket Timeout)",
        r"RendezvousConnectionError: The connection to the C10d store has failed", cascade=True),
    expect_end("xla-peer", _OWN, "JAX or XLA lost a peer",
        r"Terminating process because the (?:JAX distributed service|coordinator) detected "
        r"(?:fatal errors|missing heartbeats)",
        r"Task /job:[\w/:]{1,80} heartbeat timeout\. This indicates that the remote task has "
        r"failed",
        r"DEADLINE_EXCEEDED: Barrier timed "
        r"out\.", r"UNAVAILABLE: [^\n]{0,200}coordination service[^\n]{0,60}(?:failed|unavailable|shut ?down)",
        r"The tasks have crashed\. Task names:", cascade=True),
    expect_end("torchrun-stopped", _OWN, "its launcher was told to stop",
        r"torch\.distributed\.elastic\.multiprocessing\.api\.SignalException: Process \d{1,10} "
        r"got signal: (?:15|2)\b", cascade=True),
    expect_end("socket-peer", _OWN, "the other end of one of its connections closed",
        r"(?m:^ConnectionResetError: "
        r")", r"(?m:^ConnectionAbortedError: )", r"(?m:^BrokenPipeError: )", cascade=True),
    expect_end("mpi-peer", _OWN, "MPI ended it because another rank failed",
        r"mpirun (?:noticed that process rank \d{1,7}|has exited due to process rank "
        r"\d{1,7})", r"MPI_ABORT was invoked on rank \d{1,7}",
        r"\bPMIX ERROR: (?:UNREACHABLE|PMIX_ERR_LOST_CONNECTION)", cascade=True),
)  # fmt: skip
"""Messages of a rank whose peer failed."""

OTHER_NCCL: tuple[Pattern, ...] = (
    expect_end(
        "nccl-system",
        _OWN,
        "NCCL failed in a system call or on the network",
        r"\bncclSystemError\b",
        r"NCCL WARN NET/IB ?: Got (?:completion|async event)",
        r"NCCL WARN Bootstrap : no socket interface found",
    ),
    expect_end(
        "nccl-internal",
        _OWN,
        "NCCL failed",
        r"\bncclInternalError\b",
        r"DistBackendError: NCCL error in: ",
    ),
)
"""NCCL's general messages. They come after `CASCADE`, because NCCL reports a peer's death as an
internal error as well."""

TEXT: tuple[Pattern, ...] = HARDWARE + MEMORY + OWN + SURROUNDINGS + MISTAKES + CASCADE + OTHER_NCCL
"""The patterns for the log's tail and the container runtime's error, in their order (PATTERN-1)."""

PULL: tuple[Pattern, ...] = (
    expect_end("rate-limit", _PULL, "the registry limits how often images may be pulled", r"(?i:toomanyrequests)", r"429 Too Many Requests"),
    expect_end("no-such-image", _PULL, "the registry has no such image or tag",
        r"(?i:manifest unknown)", r"(?i:name unknown)", r"\bNAME_UNKNOWN\b", r"manifest for [^\n]{1,300} not found",
        r"[Rr]epository [^\n]{1,300} not "
        r"found", r": not found(?:\n|$)", r"image not known", r"short-name [^\n]{1,300} did not resolve",
        r"no image found in (?:manifest list|image index) for "
        r"architecture", r"no matching manifest for [\w/]{1,60}"),
    expect_end("unauthorized", _PULL, "the registry does not let this host pull the image; it may also not exist",
        r"(?i:unauthorized)", r"authentication required", r"requested access to the resource is denied", r"(?i:\bdenied: )",
        r"401 Unauthorized", r"403 Forbidden", r"no basic auth credentials", r"invalid username/password"),
    expect_end("tls", _PULL, "the connection to the registry is not secure: TLS failed",
        r"\bx509: ", r"tls: (?:failed to verify|bad certificate|handshake failure|internal error|first record does not look like)",
        r"server gave HTTP response to HTTPS "
        r"client", r"certificate (?:has expired|signed by unknown authority|is not trusted)"),
    expect_end("disk-full", _PULL, "there is no room for the image on this host", r"no space left on device", r"(?i:disk quota exceeded)"),
    expect_end("cut-off", _PULL, "the image's data broke off or arrived damaged",
        r"unexpected EOF", r"[Dd]igest did not match", r"digest (?:mismatch|invalid|verification failed)",
        r"(?i:failed to verify|filesystem layer verification "
        r"failed)", r"connection reset by peer", r"(?m:: EOF\)?$)",
        r"happened during read", r"short read: expected", r"gzip: invalid (?:header|checksum)", r"stream error: stream ID"),
    expect_end("unreachable", _PULL, "the registry cannot be reached",
        r"connection refused", r"no such host", r"[Tt]emporary failure in name resolution", r"no route to host", r"network is unreachable",
        r"server misbehaving", r"proxyconnect tcp", r"connect: host is down"),
    expect_end("timeout", _PULL, "the registry did not answer in time",
        r"i/o timeout", r"TLS handshake timeout", r"Client\.Timeout exceeded", r"context deadline exceeded", r"timed out",
        r"request canceled while waiting for connection", r"net/http: request canceled"),
    expect_end("server-error", _PULL, "the registry failed", r"\b50[0234] (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time)",
        r"received unexpected HTTP status: 5\d\d", r"invalid status code from registry 5\d\d"),
)  # fmt: skip
"""The patterns for a registry's error message when an image could not be fetched."""

PORT_IN_USE = next(pattern for pattern in OWN if pattern.name == "port-in-use")
_PORT = re.compile(
    r"\bport:? (\d{2,5})\b|(?:[\d\]*' ]|\blocalhost):(\d{4,5})\b|', (\d{2,5})(?:, 0, 0)?\)"
)


def find_ports(line: str) -> set[int]:
    """Return the ports that a message of a taken port names: "port: 29500", "('::1', 29500, 0, 0)"."""
    return {int(number) for found in _PORT.findall(line) for number in found if number}


CASCADE_RULES: frozenset[str] = frozenset(
    f"log-{pattern.name}" for pattern in TEXT if pattern.cascade
)
"""Names of the rules by which a rank is the victim of another rank's failure, and so not the
trigger where another rank can be (DRAIN-2)."""
