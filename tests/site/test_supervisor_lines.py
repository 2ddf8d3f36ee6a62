from dovetail.site.output_lines import LineSplitter


def test_lines_come_when_they_are_whole():
    splitter = LineSplitter()
    assert list(splitter.feed(b"one\ntw")) == ["one"]
    assert list(splitter.feed(b"o\r\n\nthree")) == ["two", ""]
    assert list(splitter.finish()) == ["three"]
    assert list(splitter.finish()) == []


def test_a_long_line_comes_in_pieces_and_is_not_kept():
    splitter = LineSplitter(max_bytes=4)
    assert list(splitter.feed(b"abcdefghij")) == ["abcd", "efgh"]
    assert list(splitter.feed(b"kl\nmnopqr\n")) == ["ijkl", "mnop", "qr"]
    assert list(splitter.finish()) == []


def test_bytes_that_are_no_text_are_replaced():
    assert list(LineSplitter().feed(b"a\xffb\n")) == ["a\ufffdb"]
