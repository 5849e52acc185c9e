"""The names of a group's processes, as the script and their hosts fill them in."""


def name_process(pattern: str, rank: int, world_size: int) -> str:
    """Fill `{rank}` in, padded with zeros to the width of the last rank."""
    return pattern.replace("{rank}", str(rank).zfill(len(str(max(0, world_size - 1)))))
