"""`version`: the version of Holdfast."""

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the version.

    \b
    Example:
      holdfast version
    """
    import platform

    from holdfast.version import VERSION

    if as_json:
        import json

        click.echo(json.dumps({"version": VERSION, "python": platform.python_version()}))
    else:
        click.echo(f"holdfast {VERSION}")
