"""The words of other schedulers, and Holdfast's own for the same thing.

Slurm, LSF, PBS, Kubernetes, docker, Ray, SkyPilot and systemd name what a person types by habit. A
guess by letters answers such a word with a command of another kind, so it is made only for words
of four letters and more that differ by a slip.
"""

import difflib
from collections.abc import Iterable

_COMMANDS = {
    "run": "srun salloc launch exec-run start spawn",
    "submit": "sbatch qsub bsub create apply enqueue batch",
    "jobs": "squeue qstat bjobs ps ls list get sacct history dag-runs",
    "show": "describe inspect scontrol info",
    "status": "whoami cluster-info ping",
    "logs": "log tail journalctl output stdout bpeek",
    "cancel": "scancel qdel bkill kill stop abort delete rm terminate term",
    "retry": "requeue resubmit restart rerun",
    "hosts": "sinfo nodes node workers worker machines agents pbsnodes bhosts hosts-list",
    "hosts drain": "drain cordon",
    "hosts undrain": "undrain uncordon",
    "queues": "partitions partition queue",
    "queues pause": "pause hold suspend",
    "queues resume": "resume release unsuspend",
    "pools": "scale autoscaler nodegroups autostop",
    "up": "init serve local daemon cluster",
    "dashboard": "ui web console open",
    "top": "htop nvtop stats nvidia-smi nvidia sstat",
    "events": "event audit",
    "exec": "sattach enter",
    "shell": "ssh bash sh console-into",
    "port-forward": "proxy forward expose port tunnel",
    "cp": "copy scp rsync rsync-down sync download upload get-file put",
    "config": "settings set env options",
    "report": "cost cost-report usage billing sreport price spend accounting",
    "projects": "accounts account quota quotas sacctmgr namespaces namespace users",
    "schedules": "cron crontab schedule",
    "workflow": "workflows flow flows dag dags pipeline pipelines",
    "calls": "task tasks call functions",
    "token": "tokens auth keys users-add",
    "login": "connect attach-server",
    "webhooks": "webhook hooks hook",
    "wait": "join until",
    "doctor": "check diagnose debug selftest",
    "outputs": "artifacts artifact results result",
    "code": "files workdir",
    "version": "ver",
    "why": "pending reason explain scontrol-why",
}
_SENTENCES = {
    "help": "Help stands behind each command: `holdfast --help`, `holdfast submit --help`",
    "man": "Help stands behind each command: `holdfast --help`, `holdfast submit --help`",
    "down": "`holdfast up` ends at Ctrl-C; a job ends by `holdfast cancel JOB`",
    "shutdown": "`holdfast up` ends at Ctrl-C; a job ends by `holdfast cancel JOB`",
    "update": "A resource is changed in its group: `holdfast queues set`, `holdfast pools set`",
    "upgrade": "Holdfast is upgraded by the installer that installed it; `holdfast db migrate` "
    "then upgrades the database",
    "edit": "A resource is changed in its group: `holdfast queues set`, `holdfast pools set`",
    "patch": "A resource is changed in its group: `holdfast queues set`, `holdfast pools set`",
    "pull": "An image is named by `holdfast submit --image REF`; the host pulls it",
    "build": "An image is built by docker or podman, and named by `holdfast submit --image REF`",
    "secrets": "A secret goes with its job: `holdfast submit --secret NAME`",
    "secret": "A secret goes with its job: `holdfast submit --secret NAME`",
    "array": "Many jobs that differ by an index: `holdfast submit --array 0-9 -- CMD`",
    "torchrun": "Ranks that start together: `holdfast submit --tasks 4 --gpus 8 -- CMD`",
    "mpirun": "Ranks that start together: `holdfast submit --tasks 4 --gpus 8 -- CMD`",
}
_VERBS = {
    "list": "ls get all",
    "show": "get describe info inspect view status",
    "create": "add new make put register",
    "set": "create add new update edit put patch change configure apply",
    "revoke": "delete remove rm del forget drop destroy",
    "delete": "remove rm del forget drop destroy",
    "drain": "cordon",
    "undrain": "uncordon",
    "pause": "stop suspend hold disable",
    "resume": "start unpause enable",
    "scale": "resize",
}
COMMAND_OF = {word: name for name, words in _COMMANDS.items() for word in words.split()}

_FLAGS = {
    "--time-limit": "--time -t --timeout --walltime --max-time --ttl --active-deadline",
    "--gpus": "--gres --gpus-per-node --gpus-per-task --num-gpus --accelerators --gpu -G --nproc-per-node",
    "--queue": "--partition -p -q --qos --priority-class",
    "--project": "--account -A --namespace --team",
    "--tasks": "--nodes -N --ntasks --num-nodes --nnodes --replicas --parallelism --num-workers --world-size -n",
    "--cpus": "--cpus-per-task --num-cpus --cpu --ntasks-per-core",
    "--memory": "--mem -m --mem-per-cpu --mem-per-gpu --ram",
    "--name": "--job-name -J --cluster",
    "--cwd": "--chdir -D --workspace",
    "--workdir": "--working-dir --runtime-env --code --source",
    "--env": "--export -e --envs",
    "--env-file": "--envs-file",
    "--volume": "-v --bind --container-mounts",
    "--image": "--container --container-image --docker-image --image-id",
    "--after": "--dependency -d --depends-on --begin-after",
    "--host-label": "--constraint -C --nodelist -w --node-selector --selector",
    "--max-retries": "--requeue --retries --backoff-limit --restart --max-restarts",
    "--notify": "--mail-type --mail-user",
    "--preemptible": "--use-spot --spot --interruptible",
    "--label": "--labels --tag --tags --comment",
    "--grace": "--stop-timeout --grace-period --signal",
    "--follow": "-F --watch",
    "--json": "--format -o --output",
}
VERBS_OF: dict[str, list[str]] = {}
for _name, _words in _VERBS.items():
    for _word in _words.split():
        VERBS_OF.setdefault(_word, []).append(_name)
FLAG_OF = {word: name for name, words in _FLAGS.items() for word in words.split()}


def answer_command(word: str, known: Iterable[str]) -> str:
    """Return a sentence that names Holdfast's own command for a word, "" where there is none."""
    if word in _SENTENCES:
        return _SENTENCES[word]
    if word in COMMAND_OF:
        return f"Holdfast's command for that is `holdfast {COMMAND_OF[word]}`"
    near = difflib.get_close_matches(word, known, 1, cutoff=0.75) if len(word) > 3 else []
    return f"Did you mean `holdfast {near[0]}`?" if near else ""


def answer_verb(word: str, group: str, known: Iterable[str]) -> str:
    """Return a sentence that names the verb of a group, as "holdfast queues", for another word of
    the same act, "" where there is none."""
    own = [verb for verb in VERBS_OF.get(word, ()) if verb in set(known)]
    return f"The command for that is `{group} {own[0]}`" if own else ""


def answer_flag(word: str, known: Iterable[str]) -> str:
    """Return a sentence that names the flag among `known` for a scheduler's own, "" where there is
    none."""
    name = FLAG_OF.get(word.partition("=")[0])
    return f"Holdfast's flag for that is {name}" if name in set(known) else ""
