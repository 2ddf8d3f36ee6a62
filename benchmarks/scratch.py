"""What benchmarks share: a directory to work in with its options, printing as they go, the figures of all rounds."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

Row = dict[str, object]


def describe_rounds(values: Iterable[float]) -> str:
    """The figure of every round, in order of size: how far the median can be believed."""
    return " ".join(f"{value:.3g}" if value < 1000 else f"{value:,.0f}" for value in sorted(values))


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the benchmark's own text."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def print_rows(parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace, Path], Iterable[Row]]) -> int:
    """Prints each row as soon as it is measured; gives the exit code. The directory is gone afterwards."""
    parser.add_argument("--dir", type=Path, default=Path("bench-out"), help="where to write what is measured")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    arguments = parser.parse_args()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        for row in measure(arguments, directory):
            text = json.dumps(row) if arguments.json else ", ".join(f"{key}: {value}" for key, value in row.items())
            print(text, flush=True)
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0
