"""The operations on settings."""

from holdfast.core.settings.resolve import Effective
from holdfast.wire.api import RulesFinding, RulesRequest, RulesTrial, RulesView, SettingsPatch
from holdfast.wire.operations.operation import Operation, PageOf, Role, reads
from holdfast.wire.operations.queries import ConfigQuery

GET_CONFIG = reads(
    "/v1/config", "Every setting in force and where it comes from.", PageOf(Effective), ConfigQuery
)  # fmt: skip
PATCH_CONFIG = Operation(
    "PATCH", "/v1/config", Role.ADMIN, "Change the cluster's settings.", body=SettingsPatch,
    answers={200: PageOf(Effective)}
)  # fmt: skip
GET_RULES = reads("/v1/rules", "The operators' rules of classification.", RulesView)
PUT_RULES = Operation(
    "PUT", "/v1/rules", Role.ADMIN,
    "Replace the operators' rules; a bad one is refused with its line.", body=RulesRequest,
    answers={200: RulesView}
)  # fmt: skip
TRY_RULES = Operation(
    "POST", "/v1/rules/try", Role.READ, "What a task's end would be taken for.", body=RulesTrial,
    answers={200: RulesFinding}
)  # fmt: skip
