"""The operations on hosts."""

from holdfast.core.readings.records import HostTelemetryView
from holdfast.core.records import HostCheckRecord
from holdfast.wire.api import HostActionRequest, HostView
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads
from holdfast.wire.operations.queries import HostsQuery, TelemetryQuery

LIST_HOSTS = reads("/v1/hosts", "Every host.", PageOf(HostView), HostsQuery)
GET_HOST = reads("/v1/hosts/{host}", "One host, by id or name.", HostView)
GET_TELEMETRY = reads(
    "/v1/hosts/{host}/telemetry", "The GPUs of one host, now and lately.", HostTelemetryView,
    TelemetryQuery
)  # fmt: skip
LIST_CHECKS = reads(
    "/v1/hosts/{host}/checks", "The last health checks of one host, newest first.",
    PageOf(HostCheckRecord)
)  # fmt: skip
ACT_ON_HOST = Operation(
    "POST", "/v1/hosts/{host}/{action}", Role.ADMIN,
    "drain, undrain, quarantine, release or terminate a host, or revoke its key.",
    body=HostActionRequest, optional_body=True, answers={200: HostView}
)  # fmt: skip
