from __future__ import annotations

from xml.etree import ElementTree

from dovetail.report.spread import MAX_RECEIVERS, Arrival, draw_spread


def rows(svg: str) -> list[str]:
    return [
        node.get("class", "") for node in ElementTree.fromstring(svg).iter("g") if "arrival" in node.get("class", "")
    ]


def test_rows_are_in_the_order_of_arrival_and_who_never_had_it_is_last() -> None:
    arrivals = [
        Arrival(receiver="late", after_us=900, via="origin", how="pulled"),
        Arrival(receiver="never", after_us=None),
        Arrival(receiver="origin", after_us=0, how="origin"),
        Arrival(receiver="soon", after_us=100, via="origin"),
    ]
    svg = draw_spread(arrivals, label="x")
    assert rows(svg) == ["arrival origin", "arrival pushed", "arrival pulled", "arrival failed"]
    names = [node.text for node in ElementTree.fromstring(svg).iter("text") if node.get("class") == "words"]
    assert names == ["origin", "soon", "late", "never"]
    hands = [node for node in ElementTree.fromstring(svg).iter("path") if "hand" in node.get("class", "")]
    assert len(hands) == 2


def test_of_many_receivers_the_first_and_the_last_are_shown() -> None:
    arrivals = [Arrival(receiver=f"peer-{number:03d}", after_us=number) for number in range(100)]
    svg = draw_spread(arrivals, label="x")
    assert len(rows(svg)) == MAX_RECEIVERS
    assert "peer-000" in svg
    assert "peer-099" in svg
    assert "peer-050" not in svg
    assert f"and {100 - MAX_RECEIVERS} more" in svg


def test_nobody_and_hostile_names() -> None:
    assert rows(draw_spread([], label="x")) == []
    assert "<script" not in draw_spread(
        [Arrival(receiver="<script>", after_us=None, note="<script>")], label="<script>"
    )
