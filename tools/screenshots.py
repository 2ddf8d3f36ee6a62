"""Takes screenshots of report and dashboard for docs/images, in a real browser: `tools/screenshots.py DEMO_OUT`.

`dovetail demo --out DEMO_OUT --no-serve` creates the data. With `--all DIR` every page is captured in full, at 1440 and
390 pixels, light and dark, for review; docs/images are left unchanged. Needs Chromium; Pillow, if installed, makes the
files smaller.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from dovetail.audit.tables import Tables  # noqa: E402
from system.browser import Browser, find_chromium, start_browser  # noqa: E402
from system.test_dashboard_browser import run_dashboard  # noqa: E402

IMAGES = ROOT / "docs" / "images"
DESKTOP, PHONE = 1440, 390


def main() -> int:
    """Write the pictures; returns 1 if there is no browser."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("demo", type=Path, help="what `dovetail demo --out` wrote")
    parser.add_argument("--all", type=Path, metavar="DIR", help="photograph every page whole into this directory")
    given = parser.parse_args()
    program = find_chromium()
    if program is None:
        print("no Chromium is installed: apt-get install chromium", file=sys.stderr)
        return 1
    sources = ("--journals", given.demo / "journals", "--lake", given.demo / "lake", "--tables", given.demo / "tables")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        start_browser(program, Path(profile)) as browser,
        run_dashboard(*map(str, sources)) as address,
    ):
        pages = {
            "report": (given.demo / "report.html").resolve().as_uri(),
            "dashboard": f"{address}/",
            "message": f"{address}/message/{find_lost(given.demo / 'tables')}",
        }
        if given.all:
            given.all.mkdir(parents=True, exist_ok=True)
            everything = pages | {
                "audit": f"{address}/audit",
                "search": f"{address}/search?any=pcp",
                "search-form": f"{address}/search",
                "unknown": f"{address}/message/{'f' * 64}",
            }
            for name, url in everything.items():
                for width, dark in ((DESKTOP, False), (DESKTOP, True), (PHONE, False), (PHONE, True)):
                    with shown(browser, url, width, 1000, dark=dark):
                        browser.photograph(given.all / f"{name}-{width}-{'dark' if dark else 'light'}.png", whole=True)
            return 0
        for file, page, width, height, dark in (
            ("report.png", "report", DESKTOP, 1500, False),
            ("report-phone.png", "report", PHONE, 844, True),
            ("dashboard.png", "dashboard", DESKTOP, 1300, False),
            ("dashboard-dark.png", "dashboard", DESKTOP, 1300, True),
            ("dashboard-phone.png", "dashboard", PHONE, 844, False),
            ("message.png", "message", DESKTOP, 1200, False),
        ):
            with shown(browser, pages[page], width, height, dark=dark):
                save(browser.photograph(Path(profile) / "picture.png"), IMAGES / file)
    return 0


def find_lost(tables: Path) -> str:
    """A message of the demo that was lost between two servers."""
    findings = Tables.open(tables).read("findings", ["check", "message"]).to_pylist()
    return str(next(row["message"].hex() for row in findings if row["check"] == "delivery.lost"))


@contextmanager
def shown(browser: Browser, url: str, width: int, height: int, *, dark: bool) -> Iterator[None]:
    """Show a page, and wait until it is fully loaded and drawn."""
    browser.call("Page.navigate", url="about:blank")
    browser.wait("location.href === 'about:blank'")
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.call("Emulation.setEmulatedMedia", media="", features=[scheme])
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
    )
    browser.call("Page.navigate", url=url)
    browser.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
    browser.wait("document.body.dataset.page !== 'live' || document.querySelector('#alerts tr') !== null")
    browser.wait("document.body.dataset.page !== 'search' || document.querySelector('tr[data-address]') !== null")
    browser.wait("!document.getElementById('charts-data') || document.documentElement.dataset.charts === 'drawn'")
    yield


def save(png: bytes, path: Path) -> None:
    """Save a picture; if Pillow is installed, with a palette of 256 colours, which makes it far smaller."""
    try:
        from PIL import Image
    except ImportError:
        path.write_bytes(png)
        return
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    raise SystemExit(main())
