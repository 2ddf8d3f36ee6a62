"""The headline has the same counts as the tiles and the list, the worst first."""

import msgspec

from dovetail.audit.tables import Tables
from dovetail.report.headline import write_headline
from dovetail.report.numbers import CheckCount, Numbers, OutcomeCount
from dovetail.report.survey import take_numbers


def check(name: str, severity: str, findings: int) -> CheckCount:
    return CheckCount(check=name, severity=severity, findings=findings, title="", meaning="", advice="")


def words(numbers: Numbers) -> str:
    return "; ".join(part.words for part in write_headline(numbers))


def well(tables: Tables) -> Numbers:
    numbers = take_numbers(tables)
    servers = [msgspec.structs.replace(server, verdict="proven", breaks=[]) for server in numbers.servers[:2]]
    outcomes = [OutcomeCount(fabric="pcp", type=None, outcome="delivered", deliveries=5)]
    return msgspec.structs.replace(numbers, checks=[], servers=servers, outcomes=outcomes)


def test_where_all_is_well_it_says_so(tables: Tables) -> None:
    assert words(well(tables)) == "Everything arrived; 2 journals are proven"


def test_what_is_under_way_is_not_called_arrived(tables: Tables) -> None:
    pending = [OutcomeCount(fabric="pcp", type=None, outcome="in_flight", deliveries=3)]
    numbers = msgspec.structs.replace(well(tables), outcomes=pending)
    assert words(numbers) == "3 pending, no problems; 2 journals are proven"


def test_nothing_at_all_is_not_called_well(tables: Tables) -> None:
    assert words(msgspec.structs.replace(well(tables), hops=0)) == "No data"


def test_what_hurts_comes_first_and_one_is_singular(tables: Tables) -> None:
    numbers = well(tables)
    servers = [msgspec.structs.replace(numbers.servers[0], verdict="broken"), numbers.servers[1]]
    lost = [OutcomeCount(fabric="pcp", type=None, outcome="lost", deliveries=1)]
    checks = [check("delivery.lost", "error", 1), check("fork.cycle", "error", 2), check("chain.failed", "warning", 1)]
    bad = msgspec.structs.replace(numbers, servers=servers, outcomes=lost, checks=checks)
    assert words(bad) == "1 delivery did not arrive; 1 of 2 journals is broken; 3 errors; 1 warning"
    assert [part.kind for part in write_headline(bad)] == ["bad", "bad", "bad", "unsure"]


def test_an_error_never_goes_unsaid(tables: Tables) -> None:
    only = msgspec.structs.replace(well(tables), checks=[check("integrity.bad_manifest", "error", 4)])
    assert words(only) == "4 errors"
