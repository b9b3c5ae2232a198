"""The vectors of a linear rollout as polynomials, exactly (Badger, "Linear models inference with
O(log n) complexity").

A linear rollout feeds its output vectors back: t_i = Q Σ_{j<i} c_ij t_j. So t_i is a sum of terms
c_a c_b … Q^k t_0. As on the page, c is numbered along the rows of the lower triangle: c_0; c_1,
c_2; c_3, c_4, c_5.
"""

from collections import Counter

Polynomial = dict[tuple[int, tuple[int, ...]], int]
"""{(k, (a, b, …)): how often the term c_a c_b … Q^k t_0 stands in the sum}"""

PRINTED: dict[int, Polynomial] = {
    1: {(1, (0,)): 1},
    2: {(1, (1,)): 1, (2, (0,)): 1},
    3: {(1, (3,)): 1, (2, (0, 4)): 1, (2, (1, 5)): 1, (3, (0,)): 1},
}
"""t_1, t_2 and t_3 as the page prints them"""


def coefficient(row: int, column: int) -> int:
    """Number of the coefficient with which output `row` sees token `column`, both from 0."""
    return row * (row + 1) // 2 + column


def vector(i: int) -> Polynomial:
    """t_i, by the recurrence."""
    found: list[Polynomial] = [{(0, ()): 1}]
    for row in range(i):
        terms: Counter = Counter()
        for column, earlier in enumerate(found):
            for (power, factors), count in earlier.items():
                more = tuple(sorted((*factors, coefficient(row, column))))
                terms[power + 1, more] += count
        found.append(dict(terms))
    return found[i]


def wrong_terms(i: int) -> int:
    """Terms of the printed t_i that the recurrence does not give."""
    right = vector(i)
    return sum(right.get(term, 0) != count for term, count in PRINTED[i].items())


def formula(terms: Polynomial) -> str:
    """A polynomial in LaTeX."""
    words = []
    for (power, factors), count in sorted(terms.items()):
        c = " ".join(f"c_{{{k}}}" for k in reversed(factors))
        q = "Q" if power == 1 else f"Q^{{{power}}}"
        words.append(f"{count if count > 1 else ''}{c}\\,{q}\\,t_0")
    return " + ".join(words)
