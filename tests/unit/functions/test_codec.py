"""Arguments and results as JSON texts, checked against annotations."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from holdfast.errors import ValidationError
from holdfast.functions.codec import CallCodec


class Crop(msgspec.Struct):
    left: int
    width: Annotated[int, msgspec.Meta(gt=0)] = 1


@dataclasses.dataclass
class Picture:
    path: Path
    crops: list[Crop]


WHOLE = Crop(0, 9)


def work(n: int, /, name: str, *sizes: float, crop: Crop = WHOLE, **more: int) -> Picture:
    return Picture(Path(name), [crop] * n)


def codec(function: Any = work) -> CallCodec:
    return CallCodec(function, f"pages:{function.__name__}")


def test_every_kind_of_parameter_comes_back() -> None:
    text = codec().encode_args((2, "a", 1.5, 2.5), {"crop": Crop(3), "extra": 4})
    assert json.loads(text) == {
        "n": 2, "name": "a", "sizes": [1.5, 2.5], "crop": {"left": 3, "width": 1}, "more": {"extra": 4},
    }  # fmt: skip
    args, kwargs = codec().decode_args(text)
    assert (args, kwargs) == ([2, "a", 1.5, 2.5], {"crop": Crop(3), "extra": 4})
    assert work(*args, **kwargs).crops == [Crop(3), Crop(3)]


def bare(value, *rest, **more):  # type: ignore[no-untyped-def]  # as a script may be
    return value


def partly(value: dict[str, Any], pair: tuple[int, Any] = (1, 2), each: list = WHOLE) -> dict:  # type: ignore[type-arg, assignment]
    return value


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "words"),
    [
        (bare, (b"x",), {}, "argument 'value' of pages:bare: a bytes would not arrive as one"),
        (bare, ({1: "a"},), {}, "a dict's key of type int would arrive as text"),
        (bare, ([{"a": [(1, 2)]}],), {}, "a tuple would not arrive as one"),
        (bare, (1, Crop(1)), {}, "argument 'rest' of pages:bare: a Crop would not"),
        (bare, (1,), {"path": Path("x")}, "argument 'more' of pages:bare: a PosixPath would not"),
        (partly, ({"a": {1}},), {}, "a set would not arrive as one"),
        (partly, ({}, (1, b"x")), {}, "argument 'pair' of pages:partly: a bytes would not"),
        (partly, ({}, (1, 2), [(1,)]), {}, "argument 'each' of pages:partly: a tuple would not"),
    ],
)
def test_a_value_that_would_change_its_type_is_refused(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    """CODEC-1."""
    with pytest.raises(ValidationError, match="annotate the parameter") as refused:
        codec(function).encode_args(args, kwargs)
    assert words in str(refused.value)


@pytest.mark.parametrize("value", [b"x", (1, 2), {1: "a"}, [{"a": {2}}], Crop(1), Path("x")])
def test_a_result_that_would_change_its_type_is_refused(value: Any) -> None:
    with pytest.raises(
        ValidationError, match=r"the result of pages:bare: .* annotate the function"
    ):
        codec(bare).encode_result(value)


@pytest.mark.parametrize("value", [1, 1.5, True, None, "é", [1, {"a": [None]}], {}, math.inf])
def test_without_annotations_what_json_tells_apart_arrives(value: Any) -> None:
    own = codec(bare)
    assert own.decode_args(own.encode_args((value, value), {"k": value})) == (
        [value, value],
        {"k": value},
    )
    assert own.decode_result(own.encode_result(value)) == value


def test_an_annotation_says_what_a_value_becomes() -> None:
    own = codec(partly)
    text = own.encode_args(({"a": [1]}, (1, [2]), (3, 4)), {})
    assert own.decode_args(text) == ([{"a": [1]}, (1, [2]), [3, 4]], {})


def test_defaults_are_the_hosts() -> None:
    text = codec().encode_args((1, "a"), {})
    assert json.loads(text) == {"n": 1, "name": "a"}
    assert codec().decode_args(text) == ([1, "a"], {"crop": Crop(0, 9)})


def test_a_result_is_of_the_annotated_type() -> None:
    picture = Picture(Path("x.png"), [Crop(1)])
    assert codec().decode_result(codec().encode_result(picture)) == picture


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "words"),
    [
        (("two", "a"), {}, "n", "argument 'n' of pages:work: must be a whole number, not text"),
        ((1, "a"), {"crop": {"left": 1, "width": 0}}, "crop.width", "must be at least 1"),
        ((1, "a", "x"), {}, "sizes[0]", "must be a number"),
        ((1,), {}, None, "missing a required argument: 'name'"),
        ((1, "a"), {"crop": object()}, "crop", "builtins.object has no JSON form"),
    ],
)
def test_a_wrong_argument_is_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], field: str | None, words: str
) -> None:
    with pytest.raises(ValidationError, match="pages:work") as refused:
        codec().encode_args(args, kwargs)
    assert refused.value.field == field
    assert words in str(refused.value)


def test_a_wrong_result_is_refused() -> None:
    def count() -> int:
        return 0

    with pytest.raises(ValidationError, match="the result of pages:count: must be a whole number"):
        codec(count).encode_result("three")


def test_an_annotation_without_json_is_refused_before_anything_is_sent() -> None:
    def show(image: list[socket_like]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ValidationError, match="cannot be read"):
        codec(show)

    def resize(image: list[CallCodec]) -> None: ...

    with pytest.raises(
        ValidationError, match=r"parameter 'image' of pages:resize is annotated .*CallCodec"
    ):
        codec(resize)


def test_unannotated_parameters_take_any_json() -> None:
    def anything(a, b=[1]):  # type: ignore[no-untyped-def]  # noqa: B006
        return a

    text = codec(anything).encode_args(({"x": [1, None]},), {})
    assert codec(anything).decode_args(text) == ([{"x": [1, None]}, [1]], {})
    assert codec(anything).decode_result(codec(anything).encode_result([1])) == [1]


@dataclasses.dataclass
class Reading:
    loss: float


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", ["float", "maybe", "any", "dict", "list", "struct"])
def test_a_number_that_json_has_no_form_for_comes_back_as_it_was(shape: str, number: float) -> None:
    value, kind = {
        "float": (number, float),
        "maybe": (number, float | None),
        "any": (number, Any),
        "dict": ({"loss": number, "none": None, "all": [1, number]}, dict[str, Any]),
        "list": ([number, 1.5, None], list[float | None]),
        "struct": (Reading(number), Reading),
    }[shape]

    def function(x: Any) -> Any: ...

    function.__annotations__ = {"x": kind, "return": kind}
    codec = CallCodec(function, "m:f")
    (found,), _ = codec.decode_args(codec.encode_args((value,), {}))
    assert repr(found) == repr(value)
    text = codec.encode_result(value)
    assert "NaN" not in text, "any reader of JSON takes it"
    assert repr(codec.decode_result(text)) == repr(value)


@pytest.mark.parametrize(
    "own", [{"$float": "nan"}, {"$float": {"$float": 1}}, {"$float": "nan", "more": 1}]
)
def test_only_a_number_is_read_as_one(own: dict[str, Any]) -> None:
    def function(x: int, y: dict[str, Any]) -> Any: ...

    codec = CallCodec(function, "m:f")
    with pytest.raises(ValidationError, match="argument 'x' of m:f: must be a whole number"):
        codec.encode_args((math.nan, {}), {})
    assert codec.decode_args(codec.encode_args((1, own), {})) == ([1, own], {})
