from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dovetail.cli.main import main


@dataclass(frozen=True)
class Ran:
    """The result of one command line."""

    code: int
    out: str
    err: str


@pytest.fixture
def dovetail(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Runs `dovetail ARGUMENTS` in this process."""
    for name in ("COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
