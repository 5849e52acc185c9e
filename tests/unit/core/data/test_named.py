"""The words of caches and mounts, and the labels that mounts ask for (CACHE-1, MOUNT-1)."""

from __future__ import annotations

import pytest

from holdfast.core.data.named import NamedFolder, list_cache_keys, name_variable, read_folder
from holdfast.core.spec import JobSpec, check_spec
from holdfast.errors import ValidationError


def test_a_word_is_a_name_and_in_a_container_a_path() -> None:
    assert read_folder("cache", "hf") == NamedFolder("hf")
    assert read_folder("cache", "hf:/root/.cache/") == NamedFolder("hf", "/root/.cache")
    assert name_variable("cache", "hf-hub.v2") == "HOLDFAST_CACHE_HF_HUB_V2"


@pytest.mark.parametrize(
    "word", ["/data", "", "..", "a/b", "hf:rel", "hf:/a:/b", "hf:/a/../b", "hf:"]
)
def test_other_words_are_refused_with_what_to_write(word: str) -> None:
    with pytest.raises(ValidationError, match=r"HOLDFAST_CACHE_NAME|NAME:/path/inside"):
        read_folder("cache", word)


def test_a_path_in_a_plain_job_is_refused_with_where_its_place_stands() -> None:
    plain = JobSpec(argv=("x",), caches=("hf:/root/.cache",))
    with pytest.raises(
        ValidationError, match="in a plain job its place stands in HOLDFAST_CACHE_HF"
    ):
        check_spec(plain)
    check_spec(JobSpec(argv=("x",), image="python", caches=("hf:/root/.cache",)))


def test_two_names_of_one_variable_are_refused() -> None:
    with pytest.raises(ValidationError, match="HOLDFAST_CACHE_A_B"):
        check_spec(JobSpec(argv=("x",), caches=("a-b", "a.b")))


def test_a_mount_asks_for_its_label_beside_the_jobs_own() -> None:
    spec = check_spec(JobSpec(argv=("x",), mounts=("data",), host_labels={"rack": "7"}))
    assert spec.host_labels == {"rack": "7", "mount/data": "yes"}
    assert check_spec(spec) == spec


def test_projects_share_no_cache() -> None:
    assert list_cache_keys("a", ["hf"]) == {"a/hf"}
    assert not list_cache_keys("a", ["hf:/x"]) & list_cache_keys("b", ["hf"])
