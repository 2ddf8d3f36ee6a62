from __future__ import annotations

import re
from xml.etree import ElementTree

from dovetail.report.sequence import MAX_ARROWS, Arrow, Reference, draw_sequence

M, S1 = b"m" * 32, b"s" * 32


def arrow(number: int = 0, **values: object) -> Arrow:
    base = {"role": "m", "label": "m", "source": "a", "target": "b", "at_us": number, "message": M}
    return Arrow(**{**base, **values})  # type: ignore[arg-type]


def words(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter("text")]


def classes(svg: str) -> list[str]:
    return [node.get("class", "") for node in ElementTree.fromstring(svg).iter()]


def test_a_chain_shows_actors_arrows_times_and_references() -> None:
    arrows = [
        arrow(label="m Connect", source="pcp://owner/agent", target="https://alder.example/won/resource"),
        arrow(1500, role="s1", label="s1", source="node", target="node", mark="made", message=S1),
        arrow(2000, label="m Connect", source="node", target="other", mark="lost", note="no_recipient"),
    ]
    svg = draw_sequence(arrows, [Reference(child=S1, parent=M, relation="responding_to")], label="a chain")
    shown = words(svg)
    assert {"owner/agent", "alder.example", "makes s1", "responding to", "+1.5 ms"} <= set(shown)
    assert any(text.startswith("m Connect") and "no_recipient" in text for text in shown)
    cross_top = float(re.search(r'd="M[\d.]+ ([\d.]+)l12 12', svg)[1])
    assert float(re.search(r'y="([\d.]+)"[^>]*>m Connect  no_recipient', svg)[1]) < cross_top - 3, (
        "words over the cross"
    )
    assert "arrow role-m lost" in classes(svg)
    assert "cross" in classes(svg)


def test_references_to_what_is_not_shown_are_left_out() -> None:
    svg = draw_sequence([arrow()], [Reference(child=M, parent=S1, relation="previous")], label="x")
    assert "reference" not in classes(svg)


def test_a_reference_against_time_is_drawn_too() -> None:
    arrows = [arrow(), arrow(5, message=S1)]
    svg = draw_sequence(arrows, [Reference(child=M, parent=S1, relation="previous")], label="x")
    assert "reference" in classes(svg)


def test_more_arrows_than_fit_are_counted() -> None:
    svg = draw_sequence([arrow(number) for number in range(MAX_ARROWS + 7)], label="x")
    assert "and 7 more" in words(svg)


def test_nothing_is_a_picture_too() -> None:
    assert ElementTree.fromstring(draw_sequence([], label="nothing")).get("role") == "img"


def test_hostile_names_are_text() -> None:
    bad = "<script>x</script>\"'\u202e"
    svg = draw_sequence([arrow(source=bad, label=bad, note=bad)], label=bad)
    assert "<script" not in svg
    assert "\u202e" not in svg
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label", "").startswith("<script>x</script>\"'\\u202e")
