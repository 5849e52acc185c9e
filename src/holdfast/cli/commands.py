"""The table of commands, in the order of the help."""

PROGRAM = "holdfast"
# name → (module, help). The command is an attribute of the module.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up.up", "Start everything here: database, controller, one agent."),
    "run": ("jobs.run", "Run a command as a job, follow it, and exit with its code."),
    "submit": ("jobs.submit", "Submit a job and print its id."),
    "jobs": ("jobs.jobs", "List jobs."),
    "show": ("jobs.show", "Show one job: state, attempts, and why."),
    "logs": ("jobs.logs", "Print a job's output; -f follows it."),
    "attempts": ("jobs.attempts", "List a job's attempts, with cause and reason."),
    "why": ("jobs.show", "Say what holds a job up, and what to do about it."),
    "cancel": ("jobs.cancel", "Cancel jobs."),
    "retry": ("jobs.cancel", "Queue failed or cancelled jobs again."),
    "workflow": ("workflows.workflow", "Run workflows: graphs of jobs, calls and questions."),
    "tasks": ("calls.tasks", "List calls of Python functions; call, cancel, retry."),
    "schedules": ("schedules.schedules", "Submit jobs at set times: cron and intervals."),
    "checkpoints": ("jobs.checkpoints", "List, fetch or forget a job's saved files."),
    "outputs": ("data.outputs", "Show what a job left; list it, or fetch it."),
    "events": ("operate.events", "Show what happened; -f follows."),
    "hosts": ("operate.hosts", "List hosts; drain, quarantine or end them."),
    "pools": ("operate.pools", "List pools of hosts; make, scale, pause and end them."),
    "projects": ("operate.projects", "List projects: quotas, retry defaults; change them."),
    "retries": ("operate.retries", "Show holds on retries; hold or release them."),
    "queues": ("operate.queues", "List queues; change, pause and resume them."),
    "rules": ("operate.rules", "Show, check, try and set your rules of classification."),
    "config": ("operate.config", "Show every setting and the source of its value."),
    "webhooks": ("operate.webhooks", "Send events to URLs: signed, in order, repeated."),
    "token": ("operate.token", "Make, list and revoke tokens."),
    "beat": ("jobs.beat", "From inside a job: say that the work moved forward."),
    "checkpoint": ("jobs.checkpoints", "From inside a job: save for the next attempt."),
    "server": ("up.server", "Run the controller alone."),
    "agent": ("up.agent", "Run an agent that joins a controller."),
    "supervise": ("supervise", "Run a policy script over hosts that are replaced singly."),
    "host-manager": ("host_manager", "Make this machine a host of a policy script."),
    "db": ("operate.db", "Migrate the database, or show its version."),
    "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    "version": ("version", "Print the version."),
}
# Commands that Holdfast's own jobs run.
HIDDEN: dict[str, str] = {"supervised-member": "supervise"}
