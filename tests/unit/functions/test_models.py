"""One model at a time, the same again, another in its place."""

from __future__ import annotations

import pytest

from holdfast.errors import NotFound, ValidationError
from holdfast.functions.models import SHELF, ModelShelf, WarmModel, model
from holdfast.wire.calls import ModelLimits


def make_models(shelf: ModelShelf, said: list[str]) -> dict[str, WarmModel[str]]:
    models = {}
    for name in ("a", "b"):

        def load(name: str = name) -> str:
            said.append(f"load {name}")
            return name.upper()

        declared = models[name] = WarmModel(load, name, 1.0, ModelLimits())
        declared.unload = lambda value: said.append(f"unload {value}")
        shelf.declare(declared)
    return models


def test_another_model_takes_the_place_of_the_one_before() -> None:
    shelf, said = ModelShelf(), list[str]()
    models = make_models(shelf, said)
    for name in ("a", "a", "b", "a"):
        assert shelf.fetch(models[name]) == name.upper()
        assert shelf.name == name
    shelf.drop()
    shelf.drop()
    assert shelf.name is None
    assert said == [
        "load a", "unload A", "load b", "unload B", "load a", "unload A",
    ]  # fmt: skip


def test_a_failed_load_leaves_no_model_and_the_next_call_tries_again() -> None:
    shelf, tries, told = ModelShelf(), list[int](), list[str]()

    def load() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no such weights")
        return "weights"

    declared = WarmModel(load, "m", 0.0, ModelLimits())
    shelf.loading = told.append
    shelf.loaded = lambda name, seconds: told.append(f"{name} ended")
    with pytest.raises(OSError, match="no such weights"):
        shelf.fetch(declared)
    assert shelf.name is None
    assert shelf.fetch(declared) == "weights"
    assert told == ["m", "m ended"] * 2


def test_an_unknown_model_is_named_beside_those_that_are_known() -> None:
    shelf = ModelShelf()
    make_models(shelf, [])
    with pytest.raises(NotFound, match=r"no model 'c' is declared here \(declared: a, b\)"):
        shelf.find("c")


def test_a_declared_model_is_its_loader_in_place() -> None:
    @model("tiny", vram_gb=2.5, time_limit="20m", stall="off")
    def tiny() -> list[int]:
        """Load little."""
        return [1, 2]

    try:
        assert tiny() is tiny()
        assert SHELF.name == "tiny"
        assert (tiny.vram_gb, tiny.__doc__) == (2.5, "Load little.")
        assert SHELF.list_limits()["tiny"] == ModelLimits(
            load_seconds=1200.0, stall_seconds=0.0, vram_gb=2.5
        )
    finally:
        SHELF.drop()


@pytest.mark.parametrize("given", [{"time_limit": "soon"}, {"stall": -1}, {"name": "two words"}])
def test_bad_words_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        model(**{"name": "m", **given})  # type: ignore[arg-type]  # bad on purpose
