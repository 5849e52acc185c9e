"""A pool's config for its provider, as a person writes it in TOML."""

from __future__ import annotations

import tomllib

import pytest

from holdfast.errors import ValidationError
from holdfast.providers.config import ProviderConfig, read_config
from holdfast.providers.kubernetes import KubernetesConfig
from holdfast.providers.local import LocalConfig
from holdfast.providers.slurm import SlurmConfig


@pytest.mark.parametrize("shape", [SlurmConfig, LocalConfig, KubernetesConfig])
def test_a_number_is_taken_where_a_text_is_wanted(shape: type[ProviderConfig]) -> None:
    written = tomllib.loads("gpus = 2\nenv = {OMP_NUM_THREADS = 4, NAME = 'x'}")
    if shape is KubernetesConfig:
        written["image"] = "busybox"
    if "env" not in shape.__struct_fields__:
        del written["env"]
    found = read_config("any", written, shape)
    assert found.gpus == "2"  # type: ignore[attr-defined]  # each of these has it
    if "env" in written:
        assert found.env == {"OMP_NUM_THREADS": "4", "NAME": "x"}  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize("written", [{"gpus": "two"}, {"gpus": -1}, {"gpus": True}, {"qos": [1]}])
def test_what_is_no_number_of_gpus_and_no_text_is_refused(written: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="the config of provider 'slurm' cannot be used"):
        read_config("slurm", written, SlurmConfig)
