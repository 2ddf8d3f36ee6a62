def test_the_demo_removes_nothing_that_is_not_its_own(dovetail, tmp_path):
    (tmp_path / "precious").touch()
    ran = dovetail("demo", "--out", tmp_path)
    assert ran.code == 2
    assert "not from an earlier demo" in ran.err
    assert (tmp_path / "precious").exists()


def test_a_scale_out_of_range_is_refused_before_anything_starts(dovetail, tmp_path):
    ran = dovetail("demo", "--out", tmp_path / "out", "--scale", "0")
    assert ran.code == 2
    assert "scale" in ran.err
    assert not (tmp_path / "out").exists()
