from dovetail.cli.main import main
from dovetail.swarm.content import FIXED_BYTES, MAX_CONTENT_BYTES


def test_a_payload_that_no_message_can_carry_is_refused_in_one_line(tmp_path, capsys):
    limit = MAX_CONTENT_BYTES - FIXED_BYTES
    assert main(["swarm", "publish", "--dir", str(tmp_path), "x" * (limit + 1)]) == 2
    error = capsys.readouterr().err
    assert f"expected at most {limit}" in error
    assert len(error.splitlines()) == 1
