"""The public names: which they are, that they cost nothing until used, and one error tree."""

import ast
import importlib
import inspect
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dovetail
from dovetail.model import errors

SOURCE = Path(dovetail.__file__).parent
HEAVY = {
    *("pyspark", "pyarrow", "pyoxigraph", "picows", "cryptography", "rich", "pandas", "numpy", "anyio", "typer"),
    *("asyncio", "ssl", "sqlite3", "msgspec", "starlette", "uvicorn", "deltalake", "jinja2"),
}
MAX_MODULES = 20


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def test_import_loads_next_to_nothing():
    loaded = loaded_by("import dovetail")
    assert not HEAVY & {name.partition(".")[0] for name in loaded}
    assert len(loaded) < MAX_MODULES
    assert {name for name in loaded if name.startswith("dovetail")} == {"dovetail", "dovetail._moved"}


@pytest.mark.parametrize(
    ("name", "unwanted"),
    [
        ("Receipt", {"pyarrow", "pyspark", "asyncio", "picows", "pyoxigraph"}),
        ("connect", {"pyarrow", "pyspark", "sqlite3", "picows", "pyoxigraph"}),
        ("PcpClient", {"pyarrow", "pyspark", "sqlite3", "pyoxigraph", "cryptography"}),
        ("open_tables", {"pyspark", "pyoxigraph", "picows", "asyncio"}),
        ("NotDelivered", HEAVY - {"msgspec"}),
    ],
)
def test_a_name_loads_only_what_it_needs(name, unwanted):
    loaded = {each.partition(".")[0] for each in loaded_by(f"import dovetail; dovetail.{name}")}
    assert not unwanted & loaded


def test_every_name_is_there_and_documented():
    for name in dovetail.__all__:
        value = getattr(dovetail, name)
        assert value is not None
        if isinstance(value, type | types.FunctionType):
            assert value.__doc__, name
    assert set(dir(dovetail)) == set(dovetail.__all__)


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse((SOURCE / "__init__.pyi").read_text())
    told = {
        (alias.asname, f"{node.module}")
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert {name for name, _ in told} | {"__version__"} == set(dovetail.__all__)
    for name, module in told - {("sync", "dovetail")}:
        assert getattr(dovetail, name) is getattr(importlib.import_module(module), name)


def test_other_names_are_not_there():
    with pytest.raises(AttributeError, match="no attribute 'Broker'"):
        _ = dovetail.Broker


def test_one_tree_of_errors():
    public = [getattr(dovetail, name) for name in dovetail.__all__]
    raised = [value for value in public if isinstance(value, type) and issubclass(value, Exception)]
    assert len(raised) >= 14
    for error in raised:
        assert issubclass(error, dovetail.DovetailError)
        assert error.__module__ == errors.__name__
        assert isinstance(error.retriable, bool)
    assert issubclass(dovetail.TimedOut, TimeoutError)


def test_every_error_is_in_the_reference():
    page = (SOURCE.parents[1] / "docs" / "reference" / "errors.md").read_text()
    names = [name for name, kind in vars(errors).items() if isinstance(kind, type) and kind.__name__ == name]
    raised = {name for name in names if issubclass(vars(errors)[name], Exception)}
    assert {name for name in raised if f"| `{name}` |" not in page} == set()


def parameters_of(method):
    return [str(parameter) for parameter in inspect.signature(method).parameters.values()]


@pytest.mark.parametrize("name", ["PcpClient", "WonClient", "SwarmPeer"])
def test_the_twin_has_every_call_with_the_same_parameters(name):
    client, twin = getattr(dovetail, name), getattr(dovetail.sync, name)
    public = {each for each in dir(client) if not each.startswith("_")}
    assert public - set(dir(twin)) == set()
    for each in public:
        if callable(getattr(client, each)):
            assert parameters_of(getattr(twin, each)) == parameters_of(getattr(client, each)), each


def test_a_missing_package_says_what_to_install():
    missing = dovetail.MissingExtra.explain(ModuleNotFoundError("no", name="pyspark.sql"))
    assert str(missing) == "pyspark is not installed; get it with: pip install 'dovetail[audit]'"
    assert dovetail.MissingExtra.explain(ModuleNotFoundError("no", name="something_else")) is None


def test_nothing_below_imports_the_api():
    users = [
        path
        for path in SOURCE.rglob("*.py")
        if "dovetail.api" in path.read_text() and path.relative_to(SOURCE).parts[0] not in ("api", "cli", "demo")
    ]
    assert {path.name for path in users} == {"sync.py"}
