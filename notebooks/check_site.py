"""Whether a built site works in a browser with no network: python notebooks/check_site.py site.

Every page is searched for addresses elsewhere. Then, if there is a Chromium, it opens the front
page, the scorecard and a report that has a formula, and says what a reader would see there.
"""

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-component-update",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    # The clock of the page runs fast while nothing happens: this minute takes a few seconds.
    "--virtual-time-budget=60000",
    "--dump-dom",
]
# Tags that make a browser fetch something while it shows a page.
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source|video|audio|embed|object)\b[^>]*?"
    r"\s(?:src|href|data|srcset)\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)",
    re.IGNORECASE,
)
# Opens each page in a frame and writes into <pre id="seen"> what stands in it.
PROBE = """<!doctype html><meta charset="utf-8"><body><pre id="seen"></pre><script>
async function until(ready) {
  for (let tries = 0; tries < 100 && !ready(); tries++)
    await new Promise((resolve) => setTimeout(resolve, 100));
}

async function look(address) {
  const frame = document.createElement("iframe");
  frame.width = 1400;
  frame.height = 1000;
  frame.src = address;
  document.body.append(frame);
  await new Promise((resolve) => frame.addEventListener("load", resolve));
  const page = frame.contentDocument;
  const images = [...page.images];
  for (const image of images) image.loading = "eager";
  await until(() => images.every((image) => image.complete));
  await until(() => !page.querySelector(".math") || page.querySelector("mjx-container"));
  return {
    tables: page.querySelectorAll("table").length,
    cards: page.querySelectorAll(".sd-card").length,
    broken: images.filter((image) => !image.naturalWidth)
      .map((image) => new URL(image.src).pathname),
    formulas: page.querySelectorAll("mjx-container").length,
    elsewhere: frame.contentWindow.performance.getEntriesByType("resource")
      .map((entry) => entry.name)
      .filter((name) => name.startsWith("http") && new URL(name).host !== location.host),
  };
}

(async () => {
  const seen = {};
  for (const address of PAGES) seen[address] = await look(address);
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script>"""


class Handler(SimpleHTTPRequestHandler):
    """Serves the folder of a site, and at /probe the page that looks at its pages."""

    def __init__(self, *arguments, probe: str, **options):
        self.probe = probe.encode()
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        """Send the probe, or a file of the site."""
        if self.path != "/probe":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(self.probe)

    def log_message(self, *arguments) -> None:
        """Print nothing for a request."""


def addresses_elsewhere(page: str) -> list[str]:
    """The addresses on other hosts that a browser would fetch to show a page of HTML."""
    return FETCHED.findall(page)


def faults_of_files(site: Path) -> list[str]:
    """A sentence for each page that fetches something from another host, or shows the source of a
    table in the place of the table."""
    faults = []
    for path in sorted(site.glob("*.html")):
        page = path.read_text(encoding="utf-8")
        for address in addresses_elsewhere(page):
            faults.append(f"{path.name} fetches {address}: nothing may come from another host.")
        if "| --- |" in page:
            faults.append(f"{path.name} shows a table's source: it was not rendered as a table.")
    return faults


def faults_of_page(name: str, seen: dict) -> list[str]:
    """A sentence for each thing that a reader of the page would miss."""
    faults = []
    faults += [f"{name} does not show the image {address}." for address in seen["broken"]]
    for address in seen["elsewhere"]:
        faults.append(f"{name} asked for {address}: nothing may come from another host.")
    if name == "scorecard.html" and not seen["tables"]:
        faults.append(f"{name} has no table.")
    if name == "index.html" and not seen["cards"]:
        faults.append(f"{name} has no card for a report.")
    if name[0].isdigit() and not seen["formulas"]:
        faults.append(f"{name} has a formula that MathJax has not rendered.")
    return faults


def look(browser: str, site: Path, pages: list[str]) -> dict:
    """{page: what the browser shows of it}; empty if the browser gave no result."""
    probe = PROBE.replace("PAGES", json.dumps(pages))
    handler = partial(Handler, directory=str(site), probe=probe)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/probe"
        command = [browser, *FLAGS, f"--user-data-dir={profile}", address]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        except subprocess.TimeoutExpired:
            return {}
        finally:
            server.shutdown()
    result = re.search(r'<pre id="seen">(.+?)</pre>', done.stdout, re.DOTALL)
    return json.loads(html.unescape(result[1])) if result else {}


def main(site: Path) -> int:
    """0 if the site works, 1 if not; prints a sentence for each fault."""
    if not (site / "scorecard.html").exists():
        print(f"{site} holds no built site: run make site first.")
        return 1
    faults = faults_of_files(site)
    installed = [name for name in BROWSERS if shutil.which(name)]
    if installed:
        reports = sorted(site.glob("[0-9]*.html"))
        with_formula = [path.name for path in reports if 'class="math' in path.read_text("utf-8")]
        pages = ["index.html", "scorecard.html", *with_formula[:1]]
        seen = look(installed[0], site, pages)
        for page in pages:
            if page in seen:
                faults += faults_of_page(page, seen[page])
            else:
                faults.append(f"{page} could not be looked at: {installed[0]} gave no result.")
    if faults:
        print("\n".join(faults))
        return 1
    if installed:
        print(f"{', '.join(pages)}: tables, images and formulas work without a network.")
    else:
        print(f"Not looked at in a browser: none of {', '.join(BROWSERS)} is installed.")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "site")))
