"""All methods of the client, for the blocking one, the asyncio one and the pages' reader."""

from holdfast.client.methods.arrays import ArrayMethods
from holdfast.client.methods.calls import CallMethods
from holdfast.client.methods.checkpoints import CheckpointMethods
from holdfast.client.methods.code import CodeMethods
from holdfast.client.methods.jobs import JobMethods
from holdfast.client.methods.operate import OperateMethods
from holdfast.client.methods.outputs import OutputMethods
from holdfast.client.methods.pools import PoolMethods
from holdfast.client.methods.report import ReportMethods
from holdfast.client.methods.schedules import ScheduleMethods
from holdfast.client.methods.webhooks import WebhookMethods
from holdfast.client.methods.workflows import WorkflowMethods


class EveryMethod(
    JobMethods,
    OperateMethods,
    PoolMethods,
    ReportMethods,
    ArrayMethods,
    ScheduleMethods,
    WebhookMethods,
    WorkflowMethods,
    CheckpointMethods,
    CodeMethods,
    OutputMethods,
    CallMethods,
):
    """The methods that every client has."""
