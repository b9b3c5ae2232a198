"""Articles without markup: real beginnings of articles, each template, and the whole dump."""

import re

import pytest

from lib.texts import assets, wikipedia
from lib.texts.templates import template_text
from lib.texts.wikipedia import plain_article

LEFT_OVER = {
    "bold and italics": r"''",
    "links": r"\[\[|\]\]",
    "templates": r"\{\{|\}\}",
    "entities": r"&(?:nbsp|amp|ndash|mdash|lt|gt);|\xa0",
    "tags": r"</?(?:ref|br|small|sub|sup|div|span|math|nowiki|blockquote)\b",
    "pictures": r"\bthumb\|",
    "table rows": r"(?m)^(?:\||!|\{\|)|\|\|",
    "empty brackets": r"\(\s*\)|\[\s*\]",
    "space inside brackets": r"\(\s|\s\)",
    "punctuation in brackets": r"\(\s*[,;:]|[,;]\s*\)",
    "space before punctuation": r"\s[,;.](?= |$)",
    "doubled punctuation": r"[,;]\s*[,;]",
    "punctuation that leads": r"(?m)^[,;.)]",
    "doubled spaces": r"[^\S\n]{2,}",
    "addresses": r"https?://",
    "sections of sources": r"(?mi)^(?:see also|references|notes|further reading|external links|"
    r"bibliography|footnotes|citations|sources|works cited)$",
    "lines without a letter": r"(?m)^[\W\d_]+$(?<!\n)(?<=.)",
}


def left_over(text: str) -> dict[str, list[str]]:
    found = {kind: re.findall(pattern, text) for kind, pattern in LEFT_OVER.items()}
    return {kind: what for kind, what in found.items() if what}


def begins_with_its_title(text: str, title: str) -> bool:
    first = text.split("\n")[0].lower()
    return any(word in first for word in re.findall(r"\w+", title.lower()))


BEGINNINGS = [
    (
        "Albania",
        "{{Infobox country|name=Albania}}\n'''Albania''' ({{IPAc-en|æ|l|ˈ|b|eɪ}}, {{respell|a(w)l"
        "|BAY}}; {{lang-sq|Shqipëri/Shqipëria}}; {{lang-aln|Shqipni<ref>[https://x.org F]</ref>}}),"
        " officially the '''Republic of Albania''' ({{lang-sq|Republika e Shqipërisë}}; {{IPA-sq|"
        "ɾɛpu}}), is a country.{{efn|name=status}} It is {{convert|72|km|mi}} from Italy.",
        "Albania (Shqipëri/Shqipëria; Shqipni), officially the Republic of Albania (Republika e "
        "Shqipërisë), is a country. It is 72 km from Italy.",
    ),
    (
        "A",
        "'''A''' ([[English alphabet#Letter names|named]] {{IPAc-en|'|eɪ}}, plural ''As'', ''A's'')"
        " is a letter.<ref name=oed/>",
        "A (plural As, A's) is a letter.",
    ),
    (
        "Aikido",
        "[[File:A.jpg|thumb|A [[dojo]]]]\n{{Nihongo|'''Aikido'''|合気道|Aikidō|lead=yes}} {{IPA-ja"
        "|a.i}} is a [[gendai budō|modern]] martial art.",
        "Aikido (合気道, Aikidō) is a modern martial art.",
    ),
    ("Aikido", "{{unknown|'''Aikido'''}} is a martial art.", "Aikido is a martial art."),
    (
        "Aikido (art)",
        "{{unknown|'''Aikido'''}} ({{IPA-ja|a}}, of Japan) is.",
        "Aikido (of Japan) is.",
    ),
    ("Ada", "{{disambiguation}}\n== See also ==\n* [[Adah]]", ""),
    ("List of people", "==A==\n*[[Ruth Behar]]", "List of people\n\nA\n\nRuth Behar"),
]


@pytest.mark.parametrize(("title", "wikitext", "says"), BEGINNINGS)
def test_the_beginning_of_an_article(title, wikitext, says):
    assert plain_article(wikitext, title) == says
    assert not left_over(says) and (not says or begins_with_its_title(says, title))


def test_the_left_overs_are_found_where_there_are_some():
    assert {"empty brackets", "space before punctuation"} <= left_over("It () is , so").keys()
    assert "punctuation in brackets" in left_over("Albania (, ; ; ), officially")
    assert "lines without a letter" in left_over("word\n| 3 || 4\nword")


def test_what_is_left_out_and_what_stays():
    article = """'''Text''' with H<sub>2</sub>O, 10<sup>6</sup> and the 4<sup>th</sup>&nbsp;one.
{| class="wikitext"
|-
| 1 || 2
|}
== Empty ==
{{main|Elsewhere}}
== Poetry ==
=== Verse ===
A [[wikt:bondman|bond-man's]] line in [[Alien: Resurrection]] [[de:Text]] [[Category:Text]]
| 7 || 8
== See also ==
* [[Other]]
=== Lists ===
* [[More]]
== Literature ==
The sum of <math>n</math> and <math>\\frac{1}{{2}}</math> {{!}}.
== Notes and references ==
{{reflist}}"""
    assert plain_article(article, "Text") == (
        "Text with H2O, 10⁶ and the 4th one.\n\nPoetry\n\nVerse\n\nA bond-man's line in "
        "Alien: Resurrection\n\nLiterature\n\nThe sum of n and $\\frac{1}{ {2} }$."
    )


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("convert", ["30000", "ft", "km"], "30,000 ft"),
        ("convert", ["7", "–", "10", "kg", "lb"], "7–10 kg"),
        ("convert", ["50", "to", "150", "C"], "50 to 150 °C"),
        ("convert", ["5", "ft", "10", "in"], "5 ft 10 in"),
        ("convert", ["20", "km2", "0"], "20 km²"),
        ("lang", ["grc", "ἀναρχία"], "ἀναρχία"),
        ("lang-ru", ["космонавт"], "космонавт"),
        ("transl", ["ar", "ALA", "ilāh"], "ilāh"),
        ("Nihongo", ["", "合気道", "Aikidō"], "Aikidō (合気道)"),
        ("chem", ["CH", "3", "COOH"], "CH3COOH"),
        ("val", ["6.241"], "6.241"),
        ("val", ["1.00794", "0.00007"], "1.00794 ± 0.00007"),
        ("frac", ["3"], "1/3"),
        ("frac", ["1", "3", "2"], "1 3/2"),
        ("as of", ["2014"], "As of 2014"),
        ("snd", [], " – "),
        ("nowrap", ["two words"], "two words"),
        ("convert", [], ""),
        ("cite book", ["a"], ""),
        ("IPAc-en", ["a"], ""),
    ],
)
def test_what_a_template_prints(name, arguments, says):
    assert template_text(name, {str(i + 1): a for i, a in enumerate(arguments)}) == says


def test_named_arguments_of_templates():
    assert template_text("convert", {"1": "5", "2": "mi", "adj": "on"}) == "5-mi"
    assert template_text("as of", {"1": "2014", "lc": "y"}) == "as of 2014"
    assert template_text("val", {"1": "6.2", "e": "18", "u": "C"}) == "6.2 × 10¹⁸ C"
    assert template_text("quote", {"text": "words"}) == "words"


DUMP = assets.CACHE / "assets" / "enwiki.xml.bz2"


@pytest.mark.skipif(not DUMP.exists(), reason="the embedded corpus has not been fetched")
def test_no_article_of_the_dump_holds_a_left_over():
    articles = wikipedia.articles()
    assert len(articles) == 106 == len(dict(articles))
    assert {t: found for t, text in articles if (found := left_over(text))} == {}
    assert [t for t, text in articles if not begins_with_its_title(text, t)] == []
    assert all(text[0].isupper() or text.startswith('"America') for _, text in articles)
    assert 2_700_000 < sum(len(text) for _, text in articles) < 2_900_000
