"""The metrics of workflows."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_GROUP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class WorkflowMetrics:
    """Counters of this replica's dispatcher."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.runs = Counter(
            "holdfast_workflow_runs_ended", "Runs that ended.", ("state",), registry=registry
        )
        self.nodes = Counter(
            "holdfast_workflow_nodes_ended",
            "Ends of nodes' work that were taken.",
            ("state",),
            registry=registry,
        )
        self.posts = Counter(
            "holdfast_workflow_posts", "Events of runs that were processed.", registry=registry
        )
        self.set_aside = Counter(
            "holdfast_workflow_posts_set_aside",
            "Events of runs that were given up after ten tries; each fails its run.",
            registry=registry,
        )
        self.dispatch_seconds = Histogram(
            "holdfast_workflow_dispatch_seconds",
            "Time to process a group of events of one run.",
            buckets=_GROUP,
            registry=registry,
        )
