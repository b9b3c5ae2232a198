"""Text whose entropy is known: a probabilistic grammar that writes, and says with how many bits.

Every sentence has one derivation, so its probability is that of the choices that wrote it.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from lib.errors import InputError

Grammar = Mapping[str, Sequence[tuple[float, Sequence[str]]]]
"""{symbol: [(probability, [symbols or words]), …]}; what is no key is a word"""


def _of_number(number: str, verb_end: str, noun_end: str) -> dict:
    """Rules of one grammatical number: subject and verb agree, whatever stands between them."""
    nouns = [f"{noun}{noun_end}" for noun in ("cat", "dog", "bird", "girl", "boy", "king")]
    moves = [f"{verb}{verb_end}" for verb in ("run", "sleep", "sing", "wait")]
    acts = [f"{verb}{verb_end}" for verb in ("see", "follow", "find", "help")]
    determiner = "a" if number == "one" else "some"
    return {
        f"clause {number}": [(1.0, [f"subject {number}", f"verb phrase {number}"])],
        f"subject {number}": [
            (0.6, [f"determiner {number}", "adjectives", f"noun {number}"]),
            (
                0.4,
                [f"determiner {number}", "adjectives", f"noun {number}", "that"]
                + [f"verb phrase {number}"],
            ),
        ],
        f"determiner {number}": [(0.7, ["the"]), (0.3, [determiner])],
        f"noun {number}": [(1 / len(nouns), [noun]) for noun in nouns],
        f"verb phrase {number}": [
            (0.5, [f"move {number}"]),
            (0.5, [f"act {number}", "object"]),
        ],
        f"move {number}": [(1 / len(moves), [verb]) for verb in moves],
        f"act {number}": [(1 / len(acts), [verb]) for verb in acts],
    }


STORIES: Grammar = {
    "sentence": [(0.5, ["clause one", "."]), (0.5, ["clause many", "."])],
    **_of_number("one", "s", ""),
    **_of_number("many", "", "s"),
    "object": [(0.5, ["the", "thing"]), (0.5, ["the", "adjective", "thing"])],
    "thing": [(0.25, [word]) for word in ("house", "river", "stone", "tree")],
    "adjectives": [(0.7, []), (0.3, ["adjective"])],
    "adjective": [(0.25, [word]) for word in ("old", "small", "happy", "red")],
}
"""sentences in which the verb agrees with a subject that may stand a clause before it"""


def write(
    grammar: Grammar, n_documents: int, n_sentences: int, seed: int
) -> tuple[list[str], np.ndarray]:
    """Documents of so many sentences each, and the bits of the choices that wrote each,
    [documents]."""
    check_grammar(grammar)
    rng = np.random.default_rng(seed)
    documents, bits = [], np.zeros(n_documents)
    for d in range(n_documents):
        words: list[str] = []
        for _ in range(n_sentences):
            bits[d] += _expand(grammar, "sentence", words, rng)
        documents.append(" ".join(words).replace(" .", "."))
    return documents, bits


def entropy(grammar: Grammar, symbol: str = "sentence") -> float:
    """The entropy of what a symbol is expanded to, in bits: of its own choice, and of what follows,
    in expectation (a linear system)."""
    check_grammar(grammar)
    names = [*grammar]
    expected = np.zeros((len(names), len(names)))  # how often a choice asks for another symbol
    own = np.zeros(len(names))
    for k, name in enumerate(names):
        for p, symbols in grammar[name]:
            own[k] -= p * np.log2(p)
            for s in symbols:
                if s in grammar:
                    expected[k, names.index(s)] += p
    return float(np.linalg.solve(np.eye(len(names)) - expected, own)[names.index(symbol)])


def check_grammar(grammar: Grammar) -> None:
    """Raises InputError for choices whose probabilities do not add up to 1."""
    for name, choices in grammar.items():
        total = sum(p for p, _ in choices)
        if abs(total - 1) > 1e-9:
            raise InputError(
                f"the choices of {name!r} have a total probability of {total:g}: let them add up "
                "to 1."
            )


def _expand(grammar: Grammar, symbol: str, words: list[str], rng: np.random.Generator) -> float:
    """Write what a symbol stands for; the bits of its choices."""
    if symbol not in grammar:
        words.append(symbol)
        return 0.0
    choices = grammar[symbol]
    k = rng.choice(len(choices), p=[p for p, _ in choices])
    p, symbols = choices[k]
    return -np.log2(p) + sum(_expand(grammar, s, words, rng) for s in symbols)
