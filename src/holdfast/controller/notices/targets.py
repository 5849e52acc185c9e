"""Check that the notice targets that a job or a project names are there."""

from collections.abc import Sequence

from holdfast.controller.runtime.context import Controller
from holdfast.core.webhooks.notices import read_wishes
from holdfast.errors import ValidationError


async def check_wishes(
    controller: Controller, project: str, of_job: Sequence[str], of_project: str = ""
) -> None:
    """Raise ValidationError for wishes that cannot be read, and for notice targets that the project
    lacks."""
    if not of_job and not of_project:
        return
    wanted = read_wishes(of_job, of_project)
    known = await controller.store.notices.list_names(project)
    missing = sorted(wanted.keys() - known)
    if missing:
        there = f"; there are {', '.join(sorted(known))}" if known else ""
        raise ValidationError(
            f"neither project {project} nor the cluster has a notice target {missing[0]!r}{there}: "
            f"`holdfast notify set {missing[0]} URL` makes it",
            code="unknown_target",
            field="notify",
        )
