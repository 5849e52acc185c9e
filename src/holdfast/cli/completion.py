"""`completion`: the script that makes a shell complete this program's words."""

import click

from holdfast.cli import declare

SHELLS = ("bash", "zsh", "fish")


@declare.command()
@declare.argument("shell", type=declare.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    Examples:
      eval "$(holdfast completion bash)"                           in ~/.bashrc
      eval "$(holdfast completion zsh)"                            in ~/.zshrc
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli.commands import PROGRAM
    from holdfast.cli.tree import cli

    kind = get_completion_class(shell)
    assert kind is not None  # click has all of SHELLS
    made = kind(cli, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    click.echo(made.source_template % made.source_vars())
