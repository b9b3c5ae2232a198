"""Corpora: documents from rows, the bound of a stream, the cut in parts, bad files."""

import itertools
import random

import pytest

from lib.base import InputError, cache
from lib.texts import corpora, load_corpus, sample, wikipedia
from lib.texts.documents import articles_of_lines, bounded, chunks, cut, joined
from lib.texts.hub import hub

WIKITEXT = [
    "",
    " = Valkyria Chronicles III = \n",
    "",
    " Senjō no Valkyria 3 : <unk> Chronicles \n",
    "",
    " = = Gameplay = = \n",
    " = not a title, for no empty line stands before = \n",
    "",
    " = = = Story = = = \n",
    "",
    " = A = \n",
    "",
    " text of the second \n",
]


def test_lines_become_articles_and_lose_nothing():
    found = bounded(articles_of_lines(WIKITEXT))
    assert len(found) == 2
    assert found[0].startswith(" = Valkyria") and found[0].rstrip().endswith("= = = Story = = =")
    assert found[1] == " = A = \n\n text of the second \n"
    assert "".join(articles_of_lines(WIKITEXT)) == "".join(r.rstrip("\n") + "\n" for r in WIKITEXT)


class Counted:
    """An endless stream of rows that counts how many were taken."""

    def __init__(self, rows):
        self.rows, self.taken = rows, 0

    def __iter__(self):
        for row in itertools.cycle(self.rows):
            self.taken += 1
            yield row


def test_a_stream_is_read_no_further_than_needed():
    rows = Counted(["x" * 100])
    assert len(bounded(rows, 1_000)) == 10 == rows.taken
    rows = Counted(["x" * 99, "", " 1\n"])  # what holds no letter is dropped
    assert bounded(rows, 250) == ["x" * 99] * 3 and rows.taken == 7
    lines = Counted(["", " = Title = \n", "", "y" * 100])
    documents = bounded(articles_of_lines(lines), 300)
    assert len(documents) == 3 and lines.taken == 14  # to the title of the fourth article
    assert len(set(map(len, documents))) == 1  # none is broken off


def test_a_hub_dataset_is_streamed_and_bounded(monkeypatch):
    asked, splits = [], {}

    def load_dataset(path, config, **options):
        asked.append((path, config, options))
        rows = splits.setdefault(options["split"], Counted([{"text": "word " * 200}]))
        return rows

    monkeypatch.setattr("lib.texts.hub.asked", lambda *_: None)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("lib.texts.hub.HUB_CHARACTERS", 10_000)
    fit, evaluation = hub("a/b", "c", test="validation")()
    assert len(fit) == len(evaluation) == 10
    assert {s: rows.taken for s, rows in splits.items()} == {"train": 10, "validation": 10}
    assert all(o.keys() == {"split", "streaming"} and o["streaming"] for *_, o in asked)
    assert len(hub("a/b", test="")()) == 10  # one list, to be cut


def test_documents_are_cut_whole_into_two_parts():
    documents = [f"{i} " + "word " * 50 for i in range(20)]
    fit, evaluation = cut(documents)
    assert fit + evaluation == documents and len(evaluation) == 3
    assert cut(["short", "a long text " * 99]) == (["short"], ["a long text " * 99])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no word: give a text of at least 20,000 letters"),
        (b" \n\t\n\n  \n", "holds no word"),
        (b"1 2 3\n\n" * 9_000, "holds no word"),
        (b"one paragraph", r"is one document of 13 characters and cannot be split .* 20,000"),
        (bytes(range(256)) * 200, "is not a text file: give one in UTF-8"),
        (b"\xff\xfe" + "words in UTF-16 ".encode("utf-16-le") * 99, "is not a text file"),
        ("größer ".encode("latin-1") * 3_000, "is not a text file"),
    ],
)
def test_a_file_that_is_no_corpus(tmp_path, content, says):
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        load_corpus(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 300, "x\0y", "/no/such/file.txt", 3, None])
def test_a_name_that_is_no_corpus(name):
    with pytest.raises(InputError, match=r"unknown corpus|is no text"):
        load_corpus(name)


@pytest.mark.parametrize("gap", ["", "\n"])
def test_a_text_without_paragraphs_is_cut_anyway(tmp_path, gap):
    """One long paragraph, with and without lines."""
    path = tmp_path / "mine.txt"
    path.write_text(("word " * 20 + gap) * 500)
    corpus = load_corpus(str(path))
    assert corpus.fit and corpus.eval and max(map(len, corpus.fit)) < 20_500
    assert "".join((*corpus.fit, *corpus.eval)).count("word") == 10_000


def test_pieces_end_with_paragraphs():
    text = "\n\n".join(f"Paragraph {i}. " + "word " * 300 for i in range(40))
    pieces = chunks(text)
    assert all(p.startswith("Paragraph") and len(p) >= 10_000 for p in pieces[:-1])
    assert "\n\n".join(p.strip() for p in pieces).count("Paragraph") == 40


def test_short_sources_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "stub.py").write_text("x = 1\n")
    (tmp_path / "long.py").write_text("x = 1\n" * 100)
    monkeypatch.setattr(corpora.sysconfig, "get_paths", lambda: {"stdlib": tmp_path})
    assert corpora._python_stdlib() == ["x = 1\n" * 100]


def test_the_sample_serves_windows_of_many_documents(tiny_gpt2):
    corpus = load_corpus("wikipedia-sample")

    def with_window(documents):
        ids = tiny_gpt2.tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
        return sum(len(i) >= 128 for i in ids)

    assert with_window(corpus.fit) >= 12 and with_window(corpus.eval) >= 6
    size = (corpora.DATA / "corpora" / "wikipedia-sample.json").stat().st_size
    assert size <= 200_000


def test_excerpts_do_not_touch():
    article = "\n\n".join(f"Paragraph {i} of the article. " + "word " * 40 for i in range(100))
    found = sample.excerpts(article)
    assert len(found) == 3 and all(len(e) <= sample.EXCERPT and e in article for e in found)
    ends = [(article.index(e), article.index(e) + len(e)) for e in found]
    assert all(b - a > 4 for (_, a), (b, _) in itertools.pairwise(ends))
    assert sample.excerpts("A short one.\n\nIndeed.") == ["A short one.\n\nIndeed."]


def test_a_damaged_store_of_articles_is_made_again(monkeypatch, tmp_path):
    import bz2

    page = "<page><title>{}</title><ns>{}</ns><revision><text>{}</text></revision></page>"
    pages = [("Ada", 0, "'''Ada''' is."), ("Talk:Ada", 1, "No."), ("Adah", 0, "#REDIRECT [[Ada]]")]
    dump = f"<mediawiki xmlns='x'>{''.join(page.format(*p) for p in pages)}</mediawiki>"
    (tmp_path / "dump").write_bytes(bz2.compress(dump.encode()))
    fetched = []
    monkeypatch.setattr(wikipedia, "fetch", lambda _: fetched.append(1) or tmp_path / "dump")
    assert wikipedia.articles() == wikipedia.articles() == [["Ada", "Ada is."]]
    assert len(fetched) == 1
    draw = random.Random(0)
    for n in range(2, 42):
        (stored,) = cache.CACHE.rglob("output.pkl")
        raw = bytearray(stored.read_bytes())
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        stored.write_bytes(raw[: draw.randrange(len(raw))] if n % 4 == 0 else raw)
        assert wikipedia.articles() == [["Ada", "Ada is."]]
        wikipedia.articles()
    assert len(fetched) > 20


def test_short_documents_are_joined_until_they_make_a_window():
    assert joined(["a" * 9, "b" * 9, "c" * 40, "d"], 15) == [
        f"{'a' * 9}\n\n{'b' * 9}",
        "c" * 40 + "\n\nd",
    ]
    assert joined(["a" * 20, "b" * 30], 15) == ["a" * 20, "b" * 30]
    assert joined(["a"], 15) == ["a"] and joined([], 15) == []
