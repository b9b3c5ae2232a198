"""The site: every link resolves, nothing is fetched from elsewhere, and a browser shows formulas
and filters the scorecard."""

import functools
import http.server
import json
import os
import shutil
import threading
from urllib.parse import unquote, urlsplit

import nbformat
import pandas as pd
import pytest
from bs4 import BeautifulSoup

from lib.base import DATA, ROOT, InputError
from lib.reports import extension, pages
from lib.reports.page import Page
from lib.reports.papers import PAPERS
from lib.reports.scorecard import claim_rows, counts, with_pages
from lib.reports.site import build_site

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update --window-size=1366,900"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "site"
    assert build_site(NOTEBOOKS, folder) == folder / "index.html"
    return folder


@pytest.fixture(scope="module")
def soups(site):
    found = [p for p in site.rglob("*.html") if not {".build", "_static"} & set(p.parts)]
    return {path: BeautifulSoup(path.read_text(), "html.parser") for path in found}


def test_every_internal_link_resolves_and_nothing_is_loaded_from_elsewhere(site, soups):
    ids = {path: {tag["id"] for tag in soup.find_all(id=True)} for path, soup in soups.items()}
    n = 0
    for path, soup in soups.items():
        tags = [(t, t.get("href") or t.get("src")) for t in soup.find_all(["a", "link", "script"])]
        tags += [(t, t["src"]) for t in soup.find_all("img")]
        for tag, link in tags:
            url = urlsplit(link or "")
            if url.scheme in {"http", "https"} or link is None:
                assert tag.name == "a" or link is None, f"{path.name} loads {link}"
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            assert target.exists(), f"{path.name}: {link}"
            fragment = unquote(url.fragment)
            assert not fragment or target not in ids or fragment in ids[target], (path.name, link)
            n += 1
    assert n > 500
    own = list((site / "_static").glob("*.css"))
    assert own and not any("url(http" in p.read_text() or "@import" in p.read_text() for p in own)


def test_every_figure_has_an_alternative_text(soups):
    images = [(p.name, i) for p, soup in soups.items() for i in soup.find_all("img")]
    assert len(images) > len(NOTEBOOKS) and all(i.get("alt", "").strip() for _, i in images)
    alts = {i["alt"] for name, i in images if name.startswith("01_linear")}
    assert all("_images" not in a and "$" not in a for a in alts) and len(alts) > 1


def test_code_is_folded_but_for_the_parameters(site, soups):
    for path in NOTEBOOKS:
        soup = soups[site / f"{path.stem}.html"]
        cells = soup.select("div.cell:has(> div.cell_input, > details)")
        code = [c for c in nbformat.read(path, 4).cells if c.cell_type == "code" and c.source]
        opened = [c for c in cells if not c.select_one("details")]
        assert len(cells) == len(code) and len(opened) == 1 and "profile" in opened[0].text


def test_one_report_leads_to_the_next_and_to_those_it_names(site, soups):
    soup = soups[site / "02_learned_not_architectural.html"]
    assert soup.select_one("a.left-prev")["href"] == "01_linear_recoverability.html"
    assert soup.select_one("a.right-next")["href"] == "03_residual_not_bilinear.html"
    article = soups[site / "01_linear_recoverability.html"].select_one("article")
    assert article.find("a", href="04_kinds_of_linearity.html")


def test_pages_of_papers_say_what_was_found(site, soups):
    rows = pd.read_csv(DATA / "results" / "scorecard.csv", keep_default_na=False)
    for about in PAPERS:
        text = " ".join(soups[site / "pages" / f"{about.name.lower()}.html"].text.split())
        own = rows[rows.paper == about.name.lower()]
        assert about.title.split(":")[0] in text and about.asks in text
        assert ("None of it is reproduced here yet." in text) == own.empty
        assert all(" ".join(claim.split()) in text for claim in own.claim)
        assert own.empty or counts(own) in text


def test_the_library_page_has_every_public_name(site, soups):
    import importlib

    assert len(pages.rooms()) == 10
    for room in pages.rooms():
        module = importlib.import_module(f"lib.{room}")
        text = soups[site / "pages" / f"lib.{room}.html"].text
        assert all(name in text for name in getattr(module, "__all__", []))
        assert str(ROOT) not in text


def test_a_run_in_progress_becomes_a_site_and_grows(tmp_path):
    run, target = tmp_path / "runs" / "tiny-gpt2", tmp_path / "runs"
    run.mkdir(parents=True)
    first, later = run / "01_linear_recoverability.ipynb", run / "04_kinds_of_linearity.ipynb"
    notebook = nbformat.read(ROOT / "notebooks" / first.name, as_version=4)
    bar = [{"output_type": "stream", "name": "stderr", "text": f"\rbar: {k}%"} for k in (10, 100)]
    stop = {"output_type": "error", "ename": "InputError", "evalue": "no", "traceback": ["no"]}
    notebook.cells[5].outputs = [nbformat.from_dict(o) for o in [*bar, stop]]
    injected = nbformat.v4.new_code_cell("profile = 'smoke'")
    injected.metadata.tags = ["injected-parameters"]
    notebook.cells.insert(2, injected)
    nbformat.write(notebook, first)
    later.write_text('{"cells": [')  # half written
    results = DATA / "results" / "nothing-there"

    start = build_site([first, later, run / "05_two_blocks.ipynb"], target, results).read_text()
    assert "stopped: InputError" in start
    assert "04_kinds_of_linearity, tiny-gpt2/05_two_blocks" in start
    page = target / "tiny-gpt2" / "01_linear_recoverability.html"
    assert "bar: 100%" in page.read_text() and "bar: 10%" not in page.read_text()
    assert "04_kinds_of_linearity" not in page.read_text()

    shutil.copy(ROOT / "notebooks" / later.name, later)
    api = target / ".build" / "doctrees" / "pages" / "lib.linear.doctree"
    before = api.stat().st_mtime_ns
    build_site([first, later], target, results)
    assert api.stat().st_mtime_ns == before, "what has not changed is not read again"
    assert page.read_text().count("04_kinds_of_linearity.html") >= 2  # contents, and the link


def test_claims_are_those_of_the_runs_shown(tmp_path):
    rows = claim_rows(DATA / "results" / "study")
    assert len(rows) and set(rows.profile) == {"study"}
    shown = [Page("smollm2-135m/01_linear_recoverability", "01 · Linear: how?")]
    own = with_pages(rows, shown)
    assert set(own.notebook) == {"01_linear_recoverability"} and set(own.report) == {"01 · Linear"}
    other = [Page("tiny-gpt2/01_linear_recoverability", "01")]
    assert with_pages(rows, other).empty


def test_a_figure_keeps_the_alternative_text_it_was_given():
    told = [{"alt": "seven bars"}, {"image/png": {"alt": "seven bars"}}]
    cells = []
    for metadata in told:
        output = {"output_type": "display_data", "data": {"image/png": ""}, "metadata": metadata}
        cells += [nbformat.v4.new_code_cell("1", outputs=[nbformat.from_dict(output)])]
    notebook = nbformat.v4.new_notebook(cells=cells)
    extension.readable(notebook, "Title", ROOT)
    assert [c.metadata["mystnb"]["image"]["alt"] for c in notebook.cells] == ["seven bars"] * 2


def test_no_notebook_to_show_is_said_in_one_sentence(tmp_path):
    with pytest.raises(InputError, match="none of 1 notebooks can be shown"):
        build_site([tmp_path / "run" / "01_x.ipynb"], tmp_path / "site")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium without a network; skipped where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    profile = f"--user-data-dir={tmp_path_factory.mktemp('profile')}"
    for flag in [*FLAGS.split(), rules, profile]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(driver)
    os.environ["NO_PROXY"] = "127.0.0.1,localhost"
    with webdriver.Chrome(options, service) as found:
        found.implicitly_wait(10)
        yield found


@pytest.fixture(scope="module")
def address(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def complaints(browser) -> list[str]:
    return [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]


def requests(browser) -> list[str]:
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    sent = [e["params"]["request"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [request["url"] for request in sent]


def test_pages_stand_alone_and_formulas_are_typeset(browser, address, site, soups):
    requests(browser)
    shown = ["index", *(n.stem for n in NOTEBOOKS), "pages/scorecard", "pages/lib.linear"]
    for name in shown:
        browser.get(f"{address}/{name}.html")
        if soups[site / f"{name}.html"].select(".math"):
            browser.find_element("css selector", "mjx-container")
            assert not browser.execute_script("return document.querySelector('mjx-merror')"), name
        wide = "return document.documentElement.scrollWidth - window.innerWidth"
        assert browser.execute_script(wide) <= 0, f"{name} is wider than the window"
        assert not complaints(browser), name
    sent = requests(browser)
    away = [u for u in sent if u.startswith(("http", "ws")) and not u.startswith(address)]
    assert len(sent) > len(shown) and not away


def test_search_finds_words_without_a_network(browser, address):
    browser.get(f"{address}/search.html?q=perplexity")
    assert browser.find_elements("css selector", "#search-results ul.search li a")
    assert not complaints(browser)


def test_the_scorecard_filters(browser, site):
    rows = pd.read_csv(DATA / "results" / "scorecard.csv", keep_default_na=False)

    def left() -> pd.DataFrame:
        rows = "[...document.querySelectorAll('#claims tbody tr')]"
        cells = f"return {rows}.map(r => [...r.cells].map(c => c.innerText))"
        return pd.DataFrame(browser.execute_script(cells))

    browser.get((site / "pages" / "scorecard.html").as_uri())  # opened as a file, too
    browser.find_element("css selector", ".dtsp-searchPane .dtsp-name")
    assert len(left()) == len(rows)
    names = browser.find_elements("css selector", ".dtsp-searchPane .dtsp-name")
    next(n for n in names if n.text == "contradicted").click()
    wanted = rows[rows.verdict == "contradicted"]
    assert 0 < len(wanted) < len(rows)
    assert set(left()[5]) == {"contradicted"} and len(left()) == len(wanted)
    word = wanted.claim.iloc[0].split()[0]
    browser.find_element("css selector", ".dt-search input[type=search]").send_keys(word)
    found = left()
    assert 0 < len(found) < len(wanted) and set(found[5]) == {"contradicted"}
    browser.find_element("css selector", "#claims tbody a").click()
    browser.find_element("css selector", "article h1")
    assert browser.current_url.split("#")[0].endswith(f"{wanted.notebook.iloc[0]}.html")
    assert not complaints(browser)
