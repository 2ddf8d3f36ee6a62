"""`dovetail config`: check, show and write configuration files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.exit_codes import EXIT_FAILED, EXIT_NO
from dovetail.cli.option_groups import takes_groups
from dovetail.cli.table_options import AsJson, Form

app = typer.Typer(help="Check, show and write configuration files.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The configuration file.", metavar="FILE")]


@app.command()
def check(file: File, as_json: AsJson = False) -> None:
    """Check a file together with environment overrides; list every error, and settings that let anybody in.

    Exits with 3 if there is an error, with 1 if the file cannot be read.
    """
    from dovetail.cli.output import print_json, say
    from dovetail.model.errors import ConfigError
    from dovetail.site.config import ConfigProblems, find_warnings, load_config

    try:
        loaded = load_config(file)
    except ConfigError as error:
        problems = error.problems if isinstance(error, ConfigProblems) else (str(error),)
        if as_json:
            print_json({"file": str(file), "ok": False, "problems": problems, "warnings": []})
        for problem in problems:
            say(f"dovetail: {problem}")
        raise typer.Exit(EXIT_NO if file.is_file() else EXIT_FAILED) from None
    changed = sum(setting.source != "default" for setting in loaded.settings)
    warnings = find_warnings(loaded.config)
    if as_json:
        print_json({"file": str(file), "ok": True, "problems": [], "warnings": warnings})
    for warning in warnings:
        say(f"dovetail: {file}: warning: {warning}")
    say(f"{file}: ok, {changed} of {len(loaded.settings)} keys set")


@app.command()
@takes_groups
def show(
    file: Annotated[
        Path | None, typer.Argument(help="The configuration file; without it, the defaults.", metavar="FILE")
    ] = None,
    *,
    form: Form,
) -> None:
    """Print every effective value and its source: file, environment variable or default."""
    from dovetail.cli.output import print_rows
    from dovetail.site.config import load_config
    from dovetail.site.config.schema import toml_value

    rows = [
        {
            "key": setting.key,
            "value": setting.value if form.as_json else toml_value(setting.value),
            "from": setting.source,
        }
        for setting in load_config(file).settings
    ]
    print_rows(rows, ["key", "value", "from"], form)


@app.command()
def example() -> None:
    """Print a complete example file: every key with its default, meaning and allowed values."""
    from dovetail.cli.output import print_text
    from dovetail.site.config import Config
    from dovetail.site.config.schema import example_text

    print_text(example_text(Config))
