"""Notice targets, through which people are told of jobs: the operations on them, and which of them a job
may name. The process that sends is in `runtime/senders/`."""
