def test_the_journals_of_a_world_are_for_their_owner_alone(dovetail, tmp_path):
    world = tmp_path / "worlds" / "1"
    assert dovetail("sim", "run", "--seed", "1", "--duration", "1", "--out", world).code == 0
    assert {each.stat().st_mode & 0o777 for each in (world.parent, world)} == {0o700}
    assert {each.stat().st_mode & 0o777 for each in world.glob("*.journal")} == {0o600}
