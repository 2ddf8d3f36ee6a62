from dovetail.cli.demo_screen import PlainScreen


def test_plain_lines_show_phases_notes_and_the_last_state(capsys):
    with PlainScreen() as screen:
        screen.phase("traffic")
        for count in range(100):
            screen.status(f"{count} messages")
        screen.note("injected: a \x1b[31mfault")
        screen.phase("audit")
    lines = [line.split(" s  ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["traffic", "  injected: a \\x1b[31mfault", "  99 messages", "audit"]
