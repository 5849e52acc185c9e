"""`completion`: the script that makes a shell complete this program's words."""

import click
from click.shell_completion import get_completion_class

from holdfast.cli.commands import PROGRAM

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    Examples:
      eval "$(holdfast completion bash)"                           in ~/.bashrc
      eval "$(holdfast completion zsh)"                            in ~/.zshrc
      holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has all of SHELLS
    made = kind(
        click.get_current_context().find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE"
    )
    click.echo(made.source_template % made.source_vars())
