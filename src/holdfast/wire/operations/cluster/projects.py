"""The operations on projects."""

from holdfast.core.records import ProjectRecord
from holdfast.wire.api import RetriesView, SettingsPatch
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads
from holdfast.wire.operations.queries import ProjectsQuery

LIST_PROJECTS = reads(
    "/v1/projects", "Every project that has settings or unfinished jobs.", PageOf(ProjectRecord),
    ProjectsQuery
)  # fmt: skip
GET_PROJECT = reads("/v1/projects/{name}", "One project.", ProjectRecord)
PUT_PROJECT = Operation(
    "PUT", "/v1/projects/{name}", Role.ADMIN, "Make or change a project.", body=SettingsPatch,
    optional_body=True, answers={200: ProjectRecord}
)  # fmt: skip
DELETE_PROJECT = Operation(
    "DELETE", "/v1/projects/{name}", Role.ADMIN, "Forget a project's settings.",
    answers={204: None}, repeatable=False
)  # fmt: skip
GET_RETRIES = reads(
    "/v1/retries", "Which kill switches hold retries back, and how many jobs wait.", RetriesView
)  # fmt: skip
