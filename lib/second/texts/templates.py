"""What the templates of English Wikipedia print in running text: "{{convert|5|km|mi}}" is "5 km".

The names are those that stand inside a line of prose in the embedded dump. All others (citations,
pronunciations, infoboxes, hatnotes, navigation) print nothing that a reader reads as a sentence.
"""

import re
from collections import defaultdict

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
