"""Pages in a real browser without a window: what is drawn, and what is wider than the screen."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

# A window has a least width, so a frame is the screen.
_FRAME = (
    '<body><iframe src="probed.html" width={width} height=900 frameborder=0></iframe><script>'
    "addEventListener('load', () => {{ document.body.textContent ="
    "'found: ' + frames[0].document.body.dataset.found; }});</script></body>"
)
PROBE = """<script>
addEventListener("load", () => {
  const screen = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll("body *")].filter(one =>
    !one.closest(".scroll table, .scroll img, .scroll pre, details:not([open])") &&
    one.getBoundingClientRect().right > screen + 1);
  const drawn = [...document.images].every(one => one.complete && one.naturalWidth > 0);
  document.body.dataset.found = [screen, document.documentElement.scrollWidth, drawn,
    wide.map(one => one.tagName).join("+") || "none"].join(" ");
});
</script></body>"""


def browser() -> str | None:
    """The command of Chromium, if it is here."""
    names = (os.environ.get("DDLBENCH_BROWSER"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(
    browser() is None, reason="no Chromium in PATH or DDLBENCH_BROWSER"
)


def in_browser(folder: Path, page: Path, *options: str) -> str:
    """What Chromium prints of a page."""
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--hide-scrollbars", f"--user-data-dir={folder / 'browser'}", *options, f"file://{page}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def assert_fits(html: str, width: int, folder: Path) -> None:
    """Every picture is drawn, and nothing is wider than a screen of so many pixels."""
    assert probed(html, width, folder, PROBE) == f"{width} {width} true none"


def probed(html: str, width: int, folder: Path, probe: str) -> str:
    """What a probe says of a page on a screen of so many pixels.

    Args:
        html: the page.
        width: of the screen.
        folder: for files of the browser.
        probe: a script element and the end of the body; it sets ``document.body.dataset.found``.
    """
    # The page itself forbids scripts of others.
    html = html.replace("default-src 'none'", "script-src 'unsafe-inline'")
    (folder / "probed.html").write_text(html.replace("</body>", probe))
    frame = folder / "frame.html"
    frame.write_text(_FRAME.format(width=width))
    dom = in_browser(folder, frame, "--dump-dom", "--allow-file-access-from-files")
    return dom.partition("found: ")[2].partition("</body>")[0].strip()
