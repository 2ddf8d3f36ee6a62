"""`dovetail completion`: the script that lets a shell complete commands, options, their values and files.

The script asks `dovetail` itself: the environment has the shell's name, the only argument is the line up to the cursor.
An answer has a line per candidate; with no candidate the shell completes names of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Literal

import typer
from typer._click.core import Command
from typer._click.shell_completion import _resolve_context, _resolve_incomplete, split_arg_string

app = typer.Typer()

_OPTION = re.compile("--[^=]*=")
_SCRIPTS = {
    "bash": """\
_dovetail() {
    local IFS=$'\\n'
    COMPREPLY=($(_DOVETAIL_COMPLETE=bash "$1" "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _dovetail dovetail
""",
    "zsh": """\
#compdef dovetail
_dovetail() {
    local -a found
    found=("${(@f)$(_DOVETAIL_COMPLETE=zsh "${words[1]}" "${words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n $found ]]; then
        _describe dovetail found
    else
        compset -P '--*='
        _files
    fi
}
if [[ $funcstack[1] == _dovetail ]]; then
    _dovetail "$@"
else
    compdef _dovetail dovetail
fi
""",
    "fish": """\
function __dovetail_complete
    set -l typed (commandline -ct)
    set -l found (env _DOVETAIL_COMPLETE=fish (commandline -opc)[1] (commandline -cp | string collect) 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        set -l option (string match -r -- '^--[^=]*=' $typed)
        __fish_complete_path (string replace -r -- '^--[^=]*=' '' $typed) | string replace -r '^' -- "$option"
    end
end
complete -c dovetail -f -a '(__dovetail_complete)'
""",
}

_FORMS: dict[str, Callable[[str, str], str]] = {
    "bash": lambda value, help_: value,  # noqa: ARG005
    "zsh": lambda value, help_: value.replace(":", "\\:") + f":{help_}" * bool(help_),
    "fish": lambda value, help_: f"{value}\t{help_}",
}


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
    from dovetail.cli.output import print_text

    print_text(_SCRIPTS[shell])


def answer(command: Command, shell: str, line: str) -> list[str]:
    """The candidates for the last word of a line, as this shell takes them."""
    words = split_arg_string(line)[1:]
    typed = words.pop() if words and not line[-1].isspace() else ""
    option = _OPTION.match(typed)
    start = option[0] if option and shell != "bash" else ""  # to bash, what follows a `=` is a word
    context = _resolve_context(command, {}, "dovetail", words)
    subject, typed = _resolve_incomplete(context, words, typed)
    found = subject.shell_complete(context, typed)
    return [_FORMS[shell](f"{start}{each.value}", " ".join((each.help or "").split())) for each in found]
