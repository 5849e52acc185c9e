"""What a release is made of: an sdist and three wheels, with their parts, licences and sizes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from holdfast.core.logs.grams import MARK_BITS, mark_grams
from holdfast.process import spawn as spawning
from holdfast.process.spawn import SpawnRequest
from holdfast.version import DISTRIBUTION, VERSION
from tests.release.conftest import run

STEM = f"{DISTRIBUTION.replace('-', '_')}-{VERSION}"
PURE = f"{STEM}-py3-none-any.whl"
NATIVE = {
    machine: f"{STEM}-py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}.whl"
    for machine in ("x86_64", "aarch64")
}
PARTS = ("holdfast/process/starter", "holdfast/store/postgres/logs/grams")
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine, in <elf.h>
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "releasing.md"
COMPILER, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64"
emulated = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(QEMU)),
    reason=f"no {COMPILER} or no {QEMU} is here",
)


def test_the_files_of_a_release(dist: Path) -> None:
    assert sorted(os.listdir(dist)) == sorted([PURE, *NATIVE.values(), f"{STEM}.tar.gz"])


def test_a_wheel_has_the_native_parts_of_its_machine_and_the_pure_one_has_none(dist: Path) -> None:
    for machine, name in NATIVE.items():
        with zipfile.ZipFile(dist / name) as wheel:
            for part in PARTS:
                head = wheel.read(part)[:20]
                assert head[:4] == b"\x7fELF"
                assert int.from_bytes(head[18:20], "little") == ELF_MACHINES[machine]
                assert wheel.getinfo(part).external_attr >> 16 & 0o111
    with zipfile.ZipFile(dist / PURE) as wheel:
        assert not set(PARTS) & set(wheel.namelist())


@pytest.mark.parametrize("name", [PURE, *NATIVE.values()])
def test_a_wheel_names_the_parts_of_others_with_their_licences(dist: Path, name: str) -> None:
    info = f"{STEM}.dist-info"
    with zipfile.ZipFile(dist / name) as wheel:
        names = wheel.namelist()
        bill = json.loads(wheel.read(f"{info}/sboms/holdfast.cdx.json"))
        inside = {Path(name).name for name in names if "/static/kept/" in name}
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/{DISTRIBUTION}@{VERSION}"
    listed = {file["name"] for part in bill["components"] for file in part["components"]}
    assert inside - {"kept.toml"} == listed
    licences = {Path(name).name for name in names if name.startswith(f"{info}/licenses/")}
    assert {"LICENSE", "NOTICE", "xterm-6.0.0.licence", "addon-fit-0.11.0.licence"} <= licences


def test_the_sdist_has_what_a_release_is_built_and_tested_with(dist: Path) -> None:
    with tarfile.open(dist / f"{STEM}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"hatch_build.py", "Makefile", "uv.lock", "release/build.py", "tests/bare.sh",
              "src/holdfast/process/starter.c", "CONTRIBUTING.md", "SECURITY.md"}  # fmt: skip
    assert wanted <= names
    assert not set(PARTS) & {name.removeprefix("src/") for name in names}


def test_no_file_is_larger_than_the_page_of_releases_says(dist: Path) -> None:
    """The table's sizes are in kB of 1,000 bytes."""
    stated = dict(re.findall(r"^\| `([^`]+)` \| ([\d,]+) kB \|", PAGE.read_text(), re.M))
    assert set(stated) == set(os.listdir(dist))
    for name, size in stated.items():
        assert (dist / name).stat().st_size <= int(size.replace(",", "")) * 1000, name


def unpack_arm64(dist: Path, folder: Path) -> list[Path]:
    """Unpack the native parts of the wheel for ARM 64, and return their paths."""
    with zipfile.ZipFile(dist / NATIVE["aarch64"]) as wheel:
        paths = [Path(wheel.extract(part, folder)) for part in PARTS]
    for path in paths:
        path.chmod(0o755)
    return paths


@emulated
def test_the_libraries_for_arm64_work_under_an_emulator(dist: Path, tmp_path: Path) -> None:
    starter, grams = unpack_arm64(dist, tmp_path)
    driver = tmp_path / "driver"
    run(COMPILER, "-O1", "-o", driver, Path(__file__).with_name("arm64.c"))
    words = [QEMU, "-L", "/usr/aarch64-linux-gnu", str(driver)]
    text = bytes(range(256)) * 40 + b"a line of a log\n"
    done = subprocess.run([*words, "grams", grams], input=text, capture_output=True, check=True)
    marks = int.from_bytes(bytes.fromhex(done.stdout.decode()), "little")
    assert marks.bit_length() <= MARK_BITS
    assert marks == mark_grams(text)
    done = subprocess.run([*words, "launch", starter], capture_output=True, check=True)
    # qemu emulates no process that shares memory without being a thread (EINVAL), and the words
    # of `launch` reach the kernel: a real machine answers with the status of the trial.
    assert done.stdout in (b"errno 22\n", b"status 0\n")


@emulated
def test_the_starter_for_arm64_becomes_a_program_under_an_emulator(
    dist: Path, tmp_path: Path
) -> None:
    starter, _ = unpack_arm64(dist, tmp_path)
    log = tmp_path / "log"
    code = "import os; print(os.getcwd(), os.environ['A'], os.getsid(0) == os.getpid())"
    request = SpawnRequest(
        argv=(sys.executable, "-c", code), env={"A": "b"}, cwd=str(tmp_path), stdout=str(log),
        parent_death_signal=0,
    )  # fmt: skip
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as errors:
        words = spawning._name_start(spawning._SpawnPlan(request), writer)
        done = subprocess.run(
            [QEMU, str(starter), *map(os.fsdecode, words._words[1 : words.count])],
            env={"A": "b"}, pass_fds=(writer,), check=False,
        )  # fmt: skip
        os.close(writer)
        assert (errors.read(), done.returncode) == (b"", 0)
    assert log.read_text() == f"{tmp_path} b True\n"
