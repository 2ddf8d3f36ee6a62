"""Token buckets by client, on a fake clock."""

from dovetail.runtime.pace import MAX_GONE_CLIENTS, MAX_NAMED_CLIENTS, OTHERS, Rates


def test_a_seconds_worth_may_come_at_once_and_what_is_more_waits():
    rates = Rates(100, 1000)
    rates.open("a", 5.0)
    assert rates.charge("a", 100, 10, 5.0) == 0
    assert rates.charge("a", 50, 10, 5.0) == 0.5
    assert rates.charge("a", 0, 0, 5.5) == 0
    assert rates.charge("a", 1, 2000, 5.5) == 1
    assert rates.slowed == {"a": 2}


def test_all_links_of_a_client_share_its_rate_and_others_do_not():
    rates = Rates(10, 1000)
    for name in ("a", "a", "b"):
        rates.open(name, 0.0)
    assert rates.charge("a", 10, 0, 0.0) == 0
    assert rates.charge("a", 10, 0, 0.0) == 1
    assert rates.charge("b", 10, 0, 0.0) == 0
    rates.close("a")
    assert rates.charge("a", 0, 0, 0.0) == 1
    rates.close("a")
    rates.close("b")
    assert rates._clients == {}


def test_connecting_again_does_not_give_another_burst():
    rates = Rates(100, 1000)
    for _ in range(3):
        rates.open("a", 0.0)
        pause_s = rates.charge("a", 100, 0, 0.0)
        rates.close("a")
    assert pause_s == 2
    rates.open("a", 10.0)
    assert rates.charge("a", 100, 0, 10.0) == 0


def test_clients_that_are_gone_are_forgotten_one_after_the_other():
    rates = Rates(1, 1)
    for number in range(MAX_GONE_CLIENTS + 5):
        rates.open(str(number), 0.0)
        rates.close(str(number))
    assert len(rates._gone) == MAX_GONE_CLIENTS
    assert rates._clients == {}


def test_names_are_bounded():
    rates = Rates(1, 1)
    for number in range(MAX_NAMED_CLIENTS + 2):
        rates.open(str(number), 0.0)
        rates.charge(str(number), 5, 0, 0.0)
    assert len(rates.slowed) == MAX_NAMED_CLIENTS + 1
    assert rates.slowed[OTHERS] == 2
