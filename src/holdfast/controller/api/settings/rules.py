"""The routes of operators' rules: read, replace, try."""

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.settings import Settings
from holdfast.core.endings.classify import classify
from holdfast.core.endings.decide import find_budget
from holdfast.core.endings.rules import parse_rules
from holdfast.core.facts import TaskFacts
from holdfast.core.records import shared_fields
from holdfast.errors import ValidationError
from holdfast.wire.api import RulesFinding, RulesRequest, RulesTrial, RulesView


async def get_rules(call: ApiCall) -> Response:
    """Return the operators' rules of classification."""
    return answer_json(_view(await call.controller.settings.refresh()))


async def put_rules(call: ApiCall) -> Response:
    """Replace the operators' rules; a bad rule is refused with its line."""
    request = await call.body(RulesRequest)
    in_force = {rule.pattern for rule in (await call.controller.settings.current()).rules}
    parse_rules(request.text, keeps=in_force.__contains__)
    await call.store.settings.write_rules(request.text)
    settings = await call.controller.settings.refresh()
    call.controller.poke("events")
    return answer_json(_view(settings))


async def try_rules(call: ApiCall) -> Response:
    """Classify a described end by the rules in force, or by rules that the request brings."""
    trial = await call.body(RulesTrial)
    if trial.exit_code is not None and trial.signal is not None:
        raise ValidationError(
            "a process ends by an exit code or by a signal, not by both", field="signal"
        )
    if trial.exit_code == 0:
        raise ValidationError("exit code 0 is a success; nothing is classified", field="exit_code")
    if trial.text is None:
        rules = (await call.controller.settings.current()).rules
    else:
        rules = parse_rules(trial.text)
    found = classify(TaskFacts(**shared_fields(trial, TaskFacts), log_tail=trial.log), rules)
    charged_to = find_budget(found)
    return answer_json(RulesFinding(**shared_fields(found, RulesFinding), charged_to=charged_to))


def _view(settings: Settings) -> RulesView:
    return RulesView(
        text=settings.rules_text,
        rules=list(settings.rules),
        revision=settings.rev,
        problem=settings.rules_problem,
        outdated=settings.outdated_rules,
    )
