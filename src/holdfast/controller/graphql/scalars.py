"""Scalars, enums and names of the schema: the same words and texts as REST's."""

from datetime import datetime
from enum import Enum
from typing import NewType

import msgspec
import strawberry
from strawberry.schema.config import StrawberryConfig
from strawberry.schema.name_converter import NameConverter
from strawberry.types.enum import EnumValue, StrawberryEnumDefinition
from strawberry.types.scalar import ScalarDefinition

from holdfast.core.causes import Cause
from holdfast.core.states import AttemptState, HostState, JobState, Outcome, TaskState

BigInt = NewType("BigInt", int)
Json = NewType("Json", object)

ENUMS: tuple[type[Enum], ...] = (JobState, TaskState, AttemptState, HostState, Outcome, Cause)
for _enum in ENUMS:  # before a field of a type names one
    strawberry.enum(_enum, description=(_enum.__doc__ or "").strip().splitlines()[0])


class Names(NameConverter):
    """Names an enum's values as everywhere else: `running`, not `RUNNING`."""

    def from_enum_value(self, enum: StrawberryEnumDefinition, enum_value: EnumValue) -> str:
        """Return the value as the database writes it."""
        return str(enum_value.value)


def make_config() -> StrawberryConfig:
    """Return the configuration that the schema is built with."""
    return StrawberryConfig(name_converter=Names(), scalar_map=_make_scalars())


def _make_scalars() -> dict[object, ScalarDefinition]:
    return {
        BigInt: strawberry.scalar(
            name="BigInt",
            description="A whole number that may not fit 32 bits, as a JSON number.",
            serialize=int,
            parse_value=int,
        ),
        Json: strawberry.scalar(
            name="JSON",
            description="Any JSON value.",
            serialize=lambda raw: raw,
            parse_value=lambda value: value,
        ),
        datetime: strawberry.scalar(
            name="DateTime",
            description="A time of the database's clock, in UTC: 2026-03-01T12:00:00Z.",
            serialize=msgspec.to_builtins,
            parse_value=lambda text: msgspec.convert(text, datetime),
        ),
    }
