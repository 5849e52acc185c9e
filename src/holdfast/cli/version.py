"""`version`: the version of Holdfast."""

from holdfast.cli import declare


@declare.command()
@declare.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the version.

    \b
    Example:
      holdfast version
    """
    import platform

    from holdfast.cli.output import print_line
    from holdfast.version import VERSION

    if as_json:
        import json

        print_line(json.dumps({"version": VERSION, "python": platform.python_version()}))
    else:
        print_line(f"holdfast {VERSION}")
