"""`dovetail completion`: the script that lets a shell complete commands and options."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

app = typer.Typer()


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", metavar="bash|zsh|fish")],
) -> None:
    """Print the completion script of a shell.

    \b
    bash: dovetail completion bash >> ~/.bashrc
    zsh:  dovetail completion zsh > a directory of $fpath, as _dovetail
    fish: dovetail completion fish > ~/.config/fish/completions/dovetail.fish
    """
    from typer._completion_shared import get_completion_script

    from dovetail.cli.main import COMPLETE_VARIABLE
    from dovetail.cli.output import print_text

    print_text(get_completion_script(prog_name="dovetail", complete_var=COMPLETE_VARIABLE, shell=shell) + "\n")
