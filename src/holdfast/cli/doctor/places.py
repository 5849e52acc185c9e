"""Find the folders of Holdfast on this machine."""

from pathlib import Path

import msgspec

from holdfast.cli.up.agent import find_state_folder
from holdfast.cli.up.folder import DataFolder
from holdfast.client.locate import find_data_folder


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The folders of Holdfast on this machine that are there. data: the data folder of an `up`.
    state: the folder of an agent."""

    data: Path | None
    state: Path | None


def find_places(data: str | None, state: str | None) -> Places:
    """Return the folders of Holdfast: those that are named, or the usual ones that are there."""
    up = Path(data).expanduser().absolute() if data else find_data_folder()
    agent = find_state_folder(state)
    if state is None and not agent.is_dir() and up is not None and DataFolder(up).url_file.exists():
        agent = DataFolder(up).host_folder
    return Places(data=up, state=agent if state or agent.is_dir() else None)
