import contextlib
import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Meta

import dovetail
from dovetail.model.errors import ConfigError
from dovetail.site.config import Config, ConfigProblems, ListenTcp, Section, load_config, parse_listen
from dovetail.site.config import reader as reader_module
from dovetail.site.config.schema import keys_of, sections_of
from dovetail.site.config.toml import MAX_FILE_BYTES, MAX_KEY_PARTS


@pytest.fixture
def load(tmp_path):
    """Loads a configuration from text and variables."""

    def run(text: str, **environ: str):
        path = tmp_path / "site.toml"
        path.write_text(text)
        return load_config(path, environ)

    return run


@pytest.fixture
def problems(load, tmp_path):
    """The problems of a text, without the file's name."""

    def run(text: str, **environ: str) -> list[str]:
        with pytest.raises(ConfigProblems) as caught:
            load(text, **environ)
        return [problem.removeprefix(f"{tmp_path / 'site.toml'}: ") for problem in caught.value.problems]

    return run


TOML_PIECES = [
    *(
        "lake",
        "pcp",
        "won",
        "rules",
        "seal_interval_s",
        "directory",
        ".",
        "=",
        "[",
        "]",
        "[[",
        "]]",
        "{",
        "}",
        ",",
        "\n",
    ),
    *(
        '"',
        "'",
        '"' * 3,
        "'" * 3,
        "\\",
        "#",
        " ",
        "1",
        "-",
        "1e400",
        "nan",
        "0x" + "f" * 300,
        "9" * 500,
        "true",
        "1979-05-27",
    ),
]
SECTIONS = "journal, lake, keys, logs, supervisor, pcp, won, swarm, audit, dashboard"


class RuleSection(Section, frozen=True, kw_only=True):
    """One of several."""

    name: str
    weight: Annotated[int, Meta(ge=0)] = 1


class InnerSection(Section, frozen=True, kw_only=True):
    """A table in a table."""

    port: int = 1


class TrialSection(Section, frozen=True, kw_only=True):
    """What sections of fabrics may contain."""

    listen: ListenTcp = "127.0.0.1:0"
    inner: InnerSection = msgspec.field(default_factory=InnerSection)
    rules: tuple[RuleSection, ...] = ()
    peers: dict[str, RuleSection] = msgspec.field(default_factory=dict)
    words: tuple[str, ...] = ("a",)
    certificate: Path | None = None
    low: int = 1
    high: int = 2

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")


class TrialConfig(Config, frozen=True, kw_only=True):
    """A configuration with one more section."""

    trial: TrialSection = msgspec.field(default_factory=TrialSection)


@pytest.fixture
def with_trial(monkeypatch):
    monkeypatch.setattr(reader_module, "Config", TrialConfig)


def test_an_empty_file_is_all_defaults(load, tmp_path):
    loaded = load("")
    assert loaded.config.journal.durability == "full"
    assert loaded.config.lake.directory == str(tmp_path / "lake")
    assert {setting.source for setting in loaded.settings} == {"default"}


def test_no_file_is_all_defaults_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(None, {}).config.keys.directory == tmp_path / "keys"


def test_paths_are_meant_from_the_file_or_in_variables_from_here(load, tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    loaded = load('[journal]\ndirectory = "j"\n[keys]\ndirectory = "/etc/keys"', DOVETAIL_LAKE__DIRECTORY="l")
    assert loaded.config.journal.directory == tmp_path / "j"
    assert loaded.config.lake.directory == str(tmp_path / "cwd" / "l")
    assert loaded.config.keys.directory == Path("/etc/keys")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[journal]\ndurability = "fast"', 'journal.durability = "fast": must be "full" or "relaxed"'),
        ("[lake]\ntarget_file_mb = 32", "lake.target_file_mb = 32: must be a whole number from 64 to 256"),
        ("[lake]\ntarget_file_mb = 64.5", "lake.target_file_mb = 64.5: must be a whole number from 64 to 256"),
        ("[lake]\ntarget_file_mb = true", "lake.target_file_mb = true: must be a whole number from 64 to 256"),
        ("[lake]\ndirectory = 3", "lake.directory = 3: must be a path, or s3://bucket/prefix"),
        ('[lake]\ndirectory = ""', 'lake.directory = "": must be a path, or s3://bucket/prefix'),
        ("[journal]\nrelaxed_sync_s = nan", "journal.relaxed_sync_s = nan: must be a number from 0.1 to 60"),
        ("[journal]\nrelaxed_sync_s = inf", "journal.relaxed_sync_s = inf: must be a number from 0.1 to 60"),
        ("lake = 3", "lake = 3: must be a table"),
        (
            '[keys]\ndirectroy = "k"',
            'keys.directroy = "k": no such key; did you mean keys.directory? allowed: directory',
        ),
        ("[jurnal]", "[jurnal]: no such section; did you mean journal? allowed: " + SECTIONS),
        ("zzz = 1", "zzz = 1: no such key; allowed: " + SECTIONS),
    ],
)
def test_a_problem_names_key_value_and_what_is_allowed(problems, text, problem):
    assert problems(text) == [problem]


def test_a_problem_names_the_file(load, tmp_path):
    with pytest.raises(ConfigError, match=r"^/.*/site\.toml: lake = 3: "):
        load("lake = 3")


def test_all_problems_are_found_at_once(problems, load):
    text = '[lake]\nseal_interval_s = 0\nx = 1\n[logs]\nformat = "xml"'
    assert len(problems(text)) == 3
    with pytest.raises(ConfigError, match=r"\(and 2 more: dovetail config check lists them\)$"):
        load(text)


def test_a_long_value_is_cut(problems):
    (problem,) = problems(f'[logs]\nlevel = "{"x" * 1000}"')
    assert len(problem) < 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[lake]\nx =\n", "site.toml:2:4: invalid value"),
        ('x = "abc', "site.toml: unterminated string at the end of the file"),
    ],
)
def test_a_syntax_error_names_line_and_column(load, text, message):
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert str(caught.value).endswith(message)


def test_what_is_no_text_is_refused_with_its_line(tmp_path):
    path = tmp_path / "site.toml"
    path.write_bytes(b"[lake]\n# \xff\n")
    with pytest.raises(ConfigError, match=r"site\.toml:2: is not UTF-8 text"):
        load_config(path, {})


def test_a_huge_file_is_refused(tmp_path):
    path = tmp_path / "site.toml"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="expected at most"):
        load_config(path, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, ": arrays or tables are nested too deeply"),
        ("a = " + "{a=" * 5000 + "1" + "}" * 5000, ": arrays or tables are nested too deeply"),
        ("a = " + "9" * 5000, ": exceeds the limit"),
        ("lake.seal_interval_s = 0x" + "f" * 5000, ": lake.seal_interval_s = a number of 20000 bits"),
        ("[journal]\n" + ".".join("a" * 20_000) + " = 1", f":2:1: a key of more than {MAX_KEY_PARTS} parts"),
        ("x = {" + " . ".join(["'a'"] * 20_000) + " = 1}", f":1:1: a key of more than {MAX_KEY_PARTS} parts"),
        ("\n".join(f"lake.k{number} = 1" for number in range(20_000)), ": lake.k0 = 1: no such key"),
    ],
    ids=["array", "table", "integer", "hexadecimal", "dotted", "quoted", "unknown"],
)
def test_what_would_exhaust_the_parser_is_refused_in_one_line(load, text, message):
    with pytest.raises(ConfigError) as error:
        load(text)
    assert message in str(error.value)
    assert len(str(error.value)) < 400


def test_a_variable_that_would_exhaust_the_parser_is_refused(problems):
    for value in ("[" * 5000, "9" * 5000, "{" + ".".join("a" * 20_000) + " = 1}"):
        assert len(problems("", DOVETAIL_LAKE__SEAL_INTERVAL_S=value)) == 1


@given(st.lists(st.sampled_from(TOML_PIECES) | st.text(max_size=4), max_size=40))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_or_refused(tmp_path, pieces):
    path = tmp_path / "any.toml"
    path.write_text("".join(pieces), encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigError):
        load_config(path, {})


def test_variables_override_the_file(load):
    loaded = load(
        "[lake]\nseal_interval_s = 30\n",
        DOVETAIL_LAKE__SEAL_INTERVAL_S="45",
        DOVETAIL_JOURNAL__CHECKPOINT_INTERVAL_S="2",
        DOVETAIL_JOURNAL__DURABILITY="relaxed",
        HOME="/root",
        DOVETAIL_DEBUG="1",
    )
    assert loaded.config.lake.seal_interval_s == 45
    assert loaded.config.journal.checkpoint_interval_s == 2.0
    sources = {setting.key: setting.source for setting in loaded.settings}
    assert sources["lake.seal_interval_s"] == "DOVETAIL_LAKE__SEAL_INTERVAL_S"
    assert sources["lake.directory"] == "default"


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        (
            "DOVETAIL_LAKE__SEAL_INTERVAL_S",
            "soon",
            (
                "environment variable DOVETAIL_LAKE__SEAL_INTERVAL_S: "
                'lake.seal_interval_s = "soon": must be a whole number from 1 to 86400'
            ),
        ),
        (
            "DOVETAIL_LAKE__SEAL_INTERVAL_S",
            '1\nother = "x"',
            (
                "environment variable DOVETAIL_LAKE__SEAL_INTERVAL_S: "
                'lake.seal_interval_s = "1\\nother = \\"x\\"": must be a whole number from 1 to 86400'
            ),
        ),
        (
            "DOVETAIL_LAKE__DIRECTROY",
            "x",
            'environment variable DOVETAIL_LAKE__DIRECTROY = "x": no such key; did you mean DOVETAIL_LAKE__DIRECTORY?',
        ),
        (
            "DOVETAIL_LAKE_DIRECTORY",
            "x",
            'environment variable DOVETAIL_LAKE_DIRECTORY = "x": no such key; did you mean DOVETAIL_LAKE__DIRECTORY?',
        ),
        (
            "DOVETAIL_QQ__QQ",
            "x",
            'environment variable DOVETAIL_QQ__QQ = "x": no such key; the form is DOVETAIL_SECTION__KEY',
        ),
    ],
)
def test_a_problem_with_a_variable_names_the_variable(problems, variable, value, problem):
    assert problems("", **{variable: value}) == [problem]


def test_sections_may_nest_and_repeat(load, with_trial, tmp_path):
    trial = load(
        '[trial]\nlisten = "[::1]:8142"\nwords = ["x", "y"]\ncertificate = "c.pem"\n[trial.inner]\nport = 7\n'
        '[[trial.rules]]\nname = "r"\n[trial.peers.north]\nname = "n"\nweight = 3\n',
        DOVETAIL_TRIAL__INNER__PORT="9",
        DOVETAIL_TRIAL__WORDS='["z"]',
    ).config.trial
    assert trial == TrialSection(
        listen="[::1]:8142",
        inner=InnerSection(port=9),
        rules=(RuleSection(name="r"),),
        peers={"north": RuleSection(name="n", weight=3)},
        words=("z",),
        certificate=tmp_path / "c.pem",
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('listen = "nonsense"', 'trial.listen = "nonsense": must be HOST:PORT'),
        ("[[trial.rules]]\nweight = 1", "trial.rules[0].name is missing, must be text"),
        (
            '[[trial.rules]]\nname = "a"\nweight = -1',
            "trial.rules[0].weight = -1: must be a whole number at least 0",
        ),
        (
            '[trial.peers.north]\nname = "a"\nwieght = 1',
            "trial.peers.north.wieght = 1: no such key; did you mean trial.peers.north.weight? allowed: name, weight",
        ),
        ("rules = 3", "trial.rules = 3: must be a list of tables"),
        ('words = ["a", 1]', 'trial.words = ["a", 1]: must be a list, each text'),
        ("low = 5", "[trial] low 5 is above high 2"),
    ],
)
def test_problems_inside_nested_tables_name_the_whole_key(problems, with_trial, text, problem):
    assert problems(f"[trial]\n{text}") == [problem]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:8142", ("127.0.0.1", 8142)),
        ("[::1]:0", ("::1", 0)),
        (":80", ("", 80)),
        ("h.example:9", ("h.example", 9)),
    ],
)
def test_listen_addresses(text, parsed):
    assert parse_listen(text) == parsed


@pytest.mark.parametrize("text", ["", "8142", "a b:1", "h:99999", "http://h:1", "h:1\n"])
def test_bad_listen_addresses(text):
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_listen(text)


OLD_NAMES = """
[audit]
patience_s = 7.0
[[pcp]]
name = "broker"
total_queue_bytes = 33554432
insecure_plain = true
"""


def test_former_names_work_with_a_warning(load, caplog):
    config = load(OLD_NAMES).config
    assert (config.audit.loss_timeout_s, config.pcp[0].memory_bytes) == (7.0, 33_554_432)
    assert {record.getMessage().split(": ", 1)[1] for record in caplog.records} == {
        "audit.patience_s is now called loss_timeout_s; the old name will be removed in the next release",
        "pcp[0].total_queue_bytes is now called memory_bytes; the old name will be removed in the next release",
    }


def test_a_former_variable_works_with_a_warning(load, caplog):
    assert load("", DOVETAIL_AUDIT__PATIENCE_S="7").config.audit.loss_timeout_s == 7.0
    assert "DOVETAIL_AUDIT__PATIENCE_S is now called DOVETAIL_AUDIT__LOSS_TIMEOUT_S" in caplog.text


def test_a_key_under_both_names_is_a_problem(problems):
    (problem,) = problems("audit.patience_s = 7.0\naudit.loss_timeout_s = 8.0")
    assert problem.startswith("audit.patience_s = 7.0: no such key")


def test_a_key_that_never_had_an_effect_is_ignored_with_a_warning(load, caplog):
    load("[journal]\nevidence_max_bytes = 1\n", DOVETAIL_JOURNAL__EVIDENCE_MAX_BYTES="2")
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "DOVETAIL_JOURNAL__EVIDENCE_MAX_BYTES has no effect; it will be refused in the next release",
        "journal.evidence_max_bytes has no effect; it will be refused in the next release",
    ]


def test_every_key_has_an_effect():
    source = "".join(path.read_text() for path in (Path(dovetail.__file__).parent).rglob("*.py"))
    keys = [*keys_of(Config), *(key for _, section in sections_of(Config) for key in keys_of(section))]
    names = {key.name.rpartition(".")[2] for key in keys}
    assert {name for name in names if not re.search(rf"\.{name}\b", source)} == set()
