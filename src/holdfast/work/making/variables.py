"""Choose the variables that the making of an environment is given, so that none tells it what to
make without being a part of the environment's key.

GIVEN-1  A variable is given and counts if the setup line, or a file that it reads, names it, or if
         it speaks to a tool that installs or compiles. It is given and does not count if it says
         how the world is reached. No other one is given: what would differ between two jobs (a
         sweep's parameter, a rank) then makes no environment differ.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

_TOOLS = re.compile(
    r"""PIP_|UV_|POETRY_|PDM_|PIXI_|HATCH_|FLIT_|PIPENV_|RATTLER_|CONDA_|MAMBA_|MINIFORGE_|SETUPTOOLS_|VIRTUALENV_
    |GIT_|CARGO_|RUST|GO[A-Z]+$|NPM_|CMAKE|MAKEFLAGS$|MAX_JOBS$|NINJA|CUDA(?!_VISIBLE|_LAUNCH|_DEVICE)|CUDNN|NVCC
    |ROCM_|HIP_(?!VISIBLE)|TORCH_CUDA_|TORCH_DONT|PYTORCH_ROCM|FORCE_|BUILD_|DS_BUILD|FLASH_ATT|USE_|WITH_
    |LD_(LIBRARY_PATH|PRELOAD)$|LIBRARY_PATH$|(C|CPLUS|C_INCLUDE|CPLUS_INCLUDE|PKG_CONFIG)_?PATH$|PKG_CONFIG
    |(CC|CXX|CPP|LD|AR|AS|RANLIB|NM|STRIP|FC|F77|SOURCE_DATE_EPOCH|ARCHFLAGS|NETRC|CONDARC|MAMBARC)$
    |[A-Z]*FLAGS$|MODULE|LMOD_|LOADEDMODULES$|_LMFILES_$|PATH$|BASH_ENV$|ENV$""",
    re.VERBOSE,
)
_REACHED = re.compile(
    r"""(HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TERM|COLORTERM|NO_COLOR|TMPDIR|TMP|TEMP|HOSTNAME|PWD)$
    |(?i:https?|ftp|all|no)_(?i:proxy)$|LC_|XDG_|SSL_CERT_|REQUESTS_CA_BUNDLE$|CURL_CA_BUNDLE$
    |SSH_AUTH_SOCK$|SSH_AGENT_PID$|(CUDA|NVIDIA|HIP|ROCR)_VISIBLE_DEVICES$|NVIDIA_DRIVER
    |HOLDFAST_(HOST|TASK)$""",
    re.VERBOSE,
)
_NEVER = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "CONDA_SHLVL",
    "CONDA_PROMPT_MODIFIER",
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def choose_variables(
    environ: Mapping[str, str], given: Collection[str], texts: Iterable[str], *, boxed: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that the making is given, and those of them that count (GIVEN-1).

    given: the names that the job's user gave. texts: the setup line and the files that it reads.
    boxed: all others are those of a container's image, which counts as a whole.
    """
    named = {word for text in texts for word in _WORD.findall(text)}
    passed, counted = dict[str, str](), dict[str, str]()
    for name, value in environ.items():
        if name == "PYTHONPATH" and name not in given:
            continue  # of the shell that started the agent
        if name in named:
            passed[name] = counted[name] = value
        elif name in _NEVER or name.startswith("PYTHON"):
            continue
        elif _REACHED.match(name) or (
            boxed and name not in given and not name.startswith("HOLDFAST_")
        ):
            passed[name] = value
        elif _TOOLS.match(name):
            passed[name] = counted[name] = value
    return passed, counted
