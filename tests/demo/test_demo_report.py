import threading
import urllib.error
import urllib.request

import pytest

from dovetail.demo.report import serve_report


def test_only_the_report_is_served_on_loopback(tmp_path):
    (tmp_path / "report.html").write_text("<p>fine</p>")
    (tmp_path / "secret").write_text("no")
    with serve_report(tmp_path / "report.html") as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_port}"
        for path in ("/", "/report.html"):
            with urllib.request.urlopen(base + path, timeout=60) as answer:
                assert answer.read() == b"<p>fine</p>"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}/secret", timeout=60)
        refused.value.close()
        assert refused.value.code == 404
        server.shutdown()
        thread.join()
