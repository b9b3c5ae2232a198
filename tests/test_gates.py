"""Gates, look-ups and token splits against known answers."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from lib.errors import InputError
from lib.gating.gates import (
    KINDS,
    FixedRouter,
    Routed,
    auc_by_document,
    choose_gate,
    distribution,
    fit_gate,
    fit_gates,
    fit_loss_gate,
    linear_suffices,
    loss_increases,
    on_text,
    split_gate_text,
)
from lib.gating.tokens import (
    FEATURES_OF_AUTHOR,
    _through,
    by_type,
    features,
    features_of_author,
    find_norm,
    often,
    raw_embedding,
    smoothed_token_mean,
    spelled,
    token_and_context,
    token_kinds,
)
from lib.hooks import capture
from lib.linear.affine import AffineMap, MassiveKeptMap, constant
from lib.linear.probes import n_params
from lib.stats import interval
from lib.swap.sweep import token_losses, token_sweep


@pytest.fixture(scope="module")
def plane():
    """Rows x, the normal of a hyperplane, and on which side each row lies."""
    rng = np.random.default_rng(0)
    x, normal = rng.normal(size=(4_000, 20)) * 3 + 1, rng.normal(size=20)
    return x, normal, (x - 1) @ normal > 0


def test_linear_gate_finds_a_known_hyperplane(plane):
    x, normal, label = plane
    gate = fit_gate(x[:3_000], label[:3_000])
    w = gate.net[0].weight[0].numpy()
    assert np.dot(w, normal) / np.linalg.norm(w) / np.linalg.norm(normal) > 0.99
    assert (gate(torch.tensor(x[3_000:])).numpy() == label[3_000:]).mean() > 0.98


def test_gates_give_what_scikit_learn_gives(plane):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, _, label = plane
    noisy = label ^ (np.random.default_rng(1).random(len(label)) < 0.3)
    theirs = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, max_iter=1_000))
    theirs.fit(x, noisy)
    ours = fit_gate(x, noisy).score(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours, theirs.decision_function(x), atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_no_gate_beats_chance_on_noise(kind):
    rng = np.random.default_rng(3)
    x, label = rng.normal(size=(3_000, 16)), rng.random(3_000) < 0.5
    gate = fit_gate(x[:2_000], label[:2_000], kind)
    score, document = gate.score(torch.tensor(x[2_000:])).numpy(), np.arange(1_000) // 50
    found = interval(auc_by_document(score, label[2_000:], document), np.unique(document))
    assert found.low < 0.5 < found.high


def test_gates_have_the_parameters_of_table_1():
    d, rng = 64, np.random.default_rng(0)
    x, label = rng.normal(size=(300, d)), rng.random(300) < 0.5
    sizes = {k: n_params(fit_gate(x, label, k).net) for k in KINDS}
    assert sizes == {
        "linear": d + 1,
        "b=1": 2 * d + 5,
        "b=3": 6 * d + 13,
        "b=6": 12 * d + 25,
    }


def test_the_printed_total_of_gate_parameters_has_a_mix():
    d = 1024  # Table 7: 104,659 over 23 layers, for example 8 / 2 / 11 / 2
    assert 8 * (d + 1) + 2 * (2 * d + 5) + 11 * (6 * d + 13) + 2 * (12 * d + 25) == 104_659
    assert 64 * d + 129 == 65_665  # one of the two-phase gates


def test_a_gate_of_labels_of_one_class_is_refused():
    with pytest.raises(InputError, match="all 5 positions have the label True"):
        fit_gate(np.zeros((5, 2)), np.ones(5, bool))
    with pytest.raises(InputError, match="unknown kind of gate 'b=2'"):
        fit_gate(np.zeros((5, 2)), np.arange(5) > 2, "b=2")


def test_a_gate_of_the_loss_finds_where_the_map_gains(plane):
    x, _, gains = plane
    increase = np.where(gains, -0.5, 0.5) + np.random.default_rng(2).normal(size=len(x)) * 0.2
    gate = fit_loss_gate(x[:3_000], increase[:3_000], steps=600)
    assert (gate(torch.tensor(x[3_000:])).numpy() == gains[3_000:]).mean() > 0.95
    # Where every position loses, the map is used nowhere.
    never = fit_loss_gate(x[:3_000], np.full(3_000, 0.5), steps=600)
    assert not never(torch.tensor(x)).any()


def test_the_gate_that_adds_least_is_chosen(plane):
    x, _, gains = plane
    increase = np.where(gains, -0.5, 0.5)
    good, bad = fit_gate(x, gains), fit_gate(x, ~gains)
    assert choose_gate({"bad": bad, "good": good}, x.astype(np.float32), increase) == "good"


def test_gate_text_is_split_by_document(test):
    train, choose = split_gate_text(test, 64 * 10)
    assert not {*train.document} & {*choose.document}
    assert len(train) == 10 and 1 <= len(choose) <= 2


def test_gates_of_all_kinds_are_kept_and_come_back(subject, test, fits):
    maps = {b: fits.plain[b] for b in (1, 4)}
    found = fit_gates(subject, test, maps, kinds=("linear", "b=3", "loss"))
    again = fit_gates(subject, test, maps, kinds=("linear", "b=3", "loss"))
    increases = loss_increases(subject, test, maps)
    x, increase = increases.rows(4)
    by_hand = fit_gate(x, linear_suffices(increase), "b=3")
    rows = torch.from_numpy(x)
    torch.testing.assert_close(found[4]["b=3"].score(rows), by_hand.score(rows))
    torch.testing.assert_close(found[4]["loss"].score(rows), again[4]["loss"].score(rows))
    assert increases.token.shape == increases.loss_increase[4].shape == increases.x[4].shape[:2]
    assert (increases.next_token[:, :-1] == increases.token[:, 1:]).all()


def test_gates_on_a_text_are_counted_by_hand(subject, test, fits):
    """One block: what each kind sends, what that adds, and its AUC by scikit-learn."""
    maps, text, here = {4: fits.plain[4]}, split_gate_text(test, 64 * 10), test
    table = on_text(subject, text, here, maps)
    gates = fit_gates(subject, text.train, maps, (*KINDS, "loss"))[4]
    seen, held_out = (loss_increases(subject, w, maps) for w in (text.train, here))
    _, increase_seen = seen.rows(4)
    x, increase = held_out.rows(4)
    label = increase <= increase_seen[linear_suffices(increase_seen)].max()
    for kind, rows in table.groupby("kind"):
        sent = gates[kind](torch.from_numpy(x)).numpy()
        assert rows.sent.sum() == sent.sum() and rows.positions.sum() == len(x)
        assert rows.sent_increase.sum() == pytest.approx(increase[sent].sum(), abs=1e-6)
        score = gates[kind].score(torch.from_numpy(x)).numpy()
        assert rows.auc.iloc[0] == pytest.approx(roc_auc_score(label, score))


def test_the_distribution_of_loss_increases_by_hand(subject, test, fits):
    table = distribution(subject, test, {2: fits.plain[2], 3: constant(torch.zeros(128))})
    increase = loss_increases(subject, test, {2: fits.plain[2]}).loss_increase[2]
    of_block = table[table.block == 2]
    assert of_block["95%"].iloc[0] == pytest.approx(np.quantile(increase, 0.95))
    assert of_block.within.sum() == (abs(increase) < 0.05).sum()
    assert of_block.gain.sum() == (increase < 0).sum()
    assert of_block.increase.sum() == pytest.approx(increase.sum())
    n_top = (increase >= np.quantile(increase, 0.95)).sum()
    assert of_block.top.iloc[0] == pytest.approx(np.sort(increase, axis=None)[-n_top:].sum())
    assert set(table.block) == {2, 3}


def test_a_share_of_a_gate_is_that_share(plane):
    x, _, label = plane
    rows = torch.tensor(x)
    gate = fit_gate(x, label)
    for share in (0.0, 0.25, 1.0):
        assert gate.at_share(rows, share)(rows).float().mean() == pytest.approx(share, abs=0.001)
    with pytest.raises(InputError, match=r"a share of 1\.5 is not possible"):
        gate.at_share(rows, 1.5)


def test_labels_fall_back_to_the_quartile_where_few_gain():
    increase = np.linspace(0.01, 1, 1_000)
    assert linear_suffices(increase).mean() == pytest.approx(0.25, abs=0.01)
    assert linear_suffices(increase - 0.5).mean() == pytest.approx(0.5, abs=0.01)


def test_auc_is_scikit_learns_and_its_weights_are_documents():
    rng = np.random.default_rng(0)
    score, label = rng.integers(0, 9, (8, 30)) / 9, rng.random((8, 30)) < 0.4
    document = np.array([0, 0, 1, 2, 3, 4, 5, 6])
    area = auc_by_document(score, label, document)
    assert area(np.ones((1, 7)))[0] == pytest.approx(roc_auc_score(label.ravel(), score.ravel()))
    w = np.array([[0, 2, 1, 1, 0, 3, 1]])
    rows = np.repeat(w[0][document], 30)
    weighted = roc_auc_score(label.ravel(), score.ravel(), sample_weight=rows)
    assert area(w)[0] == pytest.approx(weighted)


def test_always_and_never_routed_are_the_map_and_the_original(subject, test, fits):
    block = subject.blocks[2]
    masks = {n: FixedRouter(np.full(test.tokens.shape, n == "always")) for n in ("always", "never")}
    routed = {(2, n): Routed(block.ffn, fits.repaired[2], m) for n, m in masks.items()}
    swept = token_sweep(subject, test, routed | {2: fits.repaired[2]})
    np.testing.assert_allclose(swept.swapped[2, "always"], swept.swapped[2], atol=1e-5)
    np.testing.assert_allclose(swept.swapped[2, "never"], swept.base, atol=1e-5)


def test_a_gate_routes_as_its_own_mask_does(subject, test, fits, rows):
    gate = fit_gate(rows[0].numpy(), rows[0][:, 0].numpy() > rows[0][:, 0].median().item())
    seen = []
    handle = subject.blocks[2].ffn.register_forward_hook(lambda _, a, y: seen.append(gate(a[0])))
    token_losses(subject, test.tokens)
    handle.remove()
    ffn, repaired = subject.blocks[2].ffn, fits.repaired[2]
    told = Routed(ffn, repaired, FixedRouter(seen[0].numpy()))
    swept = token_sweep(
        subject, test, {(2, "gate"): Routed(ffn, repaired, gate), (2, "told"): told}
    )
    np.testing.assert_allclose(swept.swapped[2, "gate"], swept.swapped[2, "told"], atol=1e-5)


def test_need_read_by_two_roads(subject, test, fits):
    """δ of a position from the swept losses, and from two runs of the whole model by hand."""
    swept = token_sweep(subject, test[:2], {1: fits.plain[1]})
    block = subject.blocks[1]
    handle = block.ffn.register_forward_hook(lambda _, args, y: fits.plain[1](args[0]))
    logits = subject.model(test.tokens[:2]).logits.double().log_softmax(-1)
    handle.remove()
    base = subject.model(test.tokens[:2]).logits.double().log_softmax(-1)
    target = test.tokens[:2, 1:, None]
    increase = (base - logits)[:, :-1].gather(2, target)[..., 0].numpy()
    np.testing.assert_allclose(swept.swapped[1] - swept.base, increase, atol=1e-5)


def test_massive_tokens_keep_the_ffn_whatever_the_router_says():
    ffn, affine = torch.nn.Linear(4, 4), AffineMap(torch.zeros(4, 4), torch.zeros(4))
    repaired = MassiveKeptMap(affine.weight, affine.bias, torch.tensor([1.0, 0, 0, 0]), 5.0)
    x = torch.zeros(1, 3, 4)
    x[0, 1, 0] = 9.0
    routed = Routed(ffn, repaired, FixedRouter(np.ones((1, 3), bool)))
    y = routed(x)
    assert torch.equal(y[0, 1], ffn(x[0, 1])) and not y[0, 0].any()
    assert routed.linear.tolist() == [[True, False, True]]
    other = repaired.with_affine(constant(torch.ones(4)))
    assert torch.equal(other.massive(x), repaired.massive(x)) and torch.equal(
        other(x), torch.ones(1, 3, 4)
    )


def test_the_whole_stream_passes_its_norm_as_x(each_subject, text):
    from lib.text.windows import cut_windows

    windows = cut_windows(text.test, each_subject.tokenizer, 32).take(96)
    x, e = token_and_context(each_subject, windows, [3])[3]
    own = capture(each_subject, windows, [3])[3][0].numpy()
    np.testing.assert_allclose(x, own, atol=1e-5)
    norm = find_norm(each_subject, 3)
    whole = norm.bias.numpy() if isinstance(norm, torch.nn.LayerNorm) else 0.0
    seen = []
    handle = norm.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    each_subject.model(windows.tokens)
    handle.remove()
    np.testing.assert_allclose(_through(norm, *seen[0], seen[0][0]) + whole, x, atol=1e-4)
    same = windows.tokens == windows.tokens[0, 5]
    if same.sum() > 1 and each_subject.name != "tiny-gpt2":  # without positions in the embedding
        tokens = e[same.numpy()]
        cosine = tokens @ tokens[0] / np.linalg.norm(tokens, axis=1) / np.linalg.norm(tokens[0])
        assert cosine.min() > 0.95  # a scale apart, and a norm's shift of the stream's mean
    assert "Norm" in type(find_norm(each_subject, 3)).__name__


def test_a_lookup_is_the_mean_drawn_to_all():
    ids, values = np.array([0, 0, 1, 2]), np.array([1.0, 3.0, 5.0, 7.0])
    found = smoothed_token_mean(values, ids, 5, prior=2.0)
    assert found == pytest.approx([(4 + 8) / 4, (5 + 8) / 3, (7 + 8) / 3, 4, 4])
    with pytest.raises(InputError, match="no token occurs 3 times among 4 positions"):
        often(ids, 3)


def test_kinds_of_tokens_are_what_they_look_like(subject):
    kind, encode = token_kinds(subject.tokenizer), lambda t: subject.tokenizer(t)["input_ids"]
    assert kind[encode(" the")[0]] == "function word"
    assert kind[encode(".")[0]] == "punctuation"
    assert kind[encode("7")[0]] == "number"
    # Bytes of a byte-level vocabulary look like letters until they are decoded.
    for mark in ("\n", " –", "’"):
        assert {kind[token] for token in encode(mark)} == {"punctuation"}


def test_features_know_repeats_and_positions(subject, text):
    from lib.text.windows import cut_windows

    windows = cut_windows(text.test, subject.tokenizer, 32).take(64)
    found = features(subject, windows, np.ones(len(subject.tokenizer)))
    assert found.shape == (2, 32, 13) and np.isfinite(found).all()
    first = windows.tokens[0].tolist()
    again = [first[t] in first[:t] for t in range(32)]
    assert found[0, :, 9].tolist() == [float(a) for a in again]
    assert found[:, 0, 8].all() and not found[:, 1:, 8].any()


def test_features_of_the_author_are_of_the_next_token(subject, text):
    from lib.text.windows import cut_windows

    windows = cut_windows(text.test, subject.tokenizer, 32).take(64)
    counts = np.bincount(windows.tokens.numpy().ravel(), minlength=len(subject.tokenizer))
    found = features_of_author(subject, windows, counts)
    assert found.shape == (2, 31, len(FEATURES_OF_AUTHOR)) and np.isfinite(found).all()
    following = windows.tokens[:, 1:].numpy()
    np.testing.assert_allclose(found[..., 0], np.log(counts[following] + 1.0))
    assert found[1, 0, FEATURES_OF_AUTHOR.index("position")] == pytest.approx(31 / 512)


def test_the_raw_embedding_is_the_table(subject, test):
    own = subject.model.get_input_embeddings()(test.tokens[:1])
    e = raw_embedding(subject, test[:1])
    if subject.name == "tiny-gpt2":  # the position's row is added
        positions = subject.model.transformer.wpe.weight[: own.shape[1]]
        own = own + positions
    torch.testing.assert_close(e, own.detach().float())


def test_types_have_their_mean_need():
    increase = np.array([[1.0, -1.0, 3.0], [2.0, 4.0, 0.5]])
    ids = np.array([[7, 7, 9], [7, 9, 2]])
    found = by_type(increase, ids, least=2)
    assert found.token.tolist() == [7, 9] and found.occurrences.tolist() == [3, 2]
    assert found["mean"].tolist() == pytest.approx([2 / 3, 3.5])
    assert found.positive.tolist() == pytest.approx([2 / 3, 1.0])
    with pytest.raises(InputError, match="no token occurs 4 times among 6 positions"):
        by_type(increase, ids, least=4)


class TakesTheMeanAway(torch.nn.Module):
    """A norm that centres and is no nn.LayerNorm, as Cohere's is."""

    def __init__(self, d: int, shift: float = 0.0):
        super().__init__()
        self.weight = torch.linspace(0.5, 2, d)
        self.shift = shift

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() + self.shift


class Keeps(TakesTheMeanAway):
    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() + self.shift


class Squashes(TakesTheMeanAway):
    def forward(self, x):
        return self.weight * torch.tanh(x)


@pytest.mark.parametrize("norm", [TakesTheMeanAway(16), TakesTheMeanAway(16, 0.3), Keeps(16)])
def test_norms_are_split_by_what_they_do(norm, generator):
    stream = 3 * torch.randn(2, 5, 16, generator=generator) + 1
    part = torch.randn(2, 5, 16, generator=generator)
    centred, own = stream, part
    if type(norm) is TakesTheMeanAway:
        centred, own = stream - stream.mean(-1, keepdim=True), part - part.mean(-1, keepdim=True)
    size = centred.square().mean(-1, keepdim=True).sqrt()
    expected = norm.weight * own / size  # by hand: the weight, over the size of the whole stream
    torch.testing.assert_close(
        _through(norm, stream, norm(stream), part), expected, atol=1e-3, rtol=0
    )


def test_a_norm_that_is_none_is_refused(generator):
    stream = torch.randn(2, 5, 16, generator=generator)
    with pytest.raises(InputError, match="does not scale each position"):
        _through(Squashes(16), stream, Squashes(16)(stream), stream)


def words_in(pieces: dict[str, int], pre_tokenizer, decoder):
    """A tokenizer of whole words by a dictionary; numbers may have gaps."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


def test_words_are_told_by_decoding_whatever_their_tokenizer_marks_them_with():
    from tokenizers import decoders, pre_tokenizers

    pieces = {"[UNK]": 0, "the": 1, "house": 2, "##s": 3, ".": 4, "7": 9}  # none is 5 to 8
    tokenizer = words_in(pieces, pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())
    texts, starts = spelled(tokenizer)
    assert len(texts) == 10 and texts[5] == "" and not starts[5]
    kind = token_kinds(tokenizer)
    assert kind[[1, 2, 3, 4, 9]].tolist() == [
        "function word", "content word", "subword", "punctuation", "number",
    ]  # fmt: skip


def test_a_byte_level_tokenizer_says_the_same_by_its_own_sign(subject):
    _, starts = spelled(subject.tokenizer)
    pieces = subject.tokenizer.convert_ids_to_tokens(range(len(starts)))
    own = [piece.startswith("Ġ") and piece != "Ġ" for piece in pieces]
    differ = [piece for piece, a, b in zip(pieces, own, starts) if a != b]
    assert not [piece for piece in differ if any(c.isalnum() for c in piece)], differ[:9]


def test_a_tokenizer_that_knows_no_english_is_tried_on_its_own_tokens():
    from tokenizers import decoders, pre_tokenizers

    from lib.text.windows import start_tokens

    for characters in ("日本語", "мир", "αβγ"):
        pieces = {c: k for k, c in enumerate(characters)}
        tokenizer = words_in(pieces, pre_tokenizers.Split("", "isolated"), decoders.Fuse())
        tokenizer.backend_tokenizer.model.unk_token = characters[0]
        assert start_tokens(tokenizer) == ()


class RootMeanSquare(torch.nn.Module):
    """As Gemma's: times one plus a weight."""

    def __init__(self, d):
        super().__init__()
        self.weight = torch.nn.Parameter(0.3 * torch.randn(d))

    def forward(self, x):
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + self.weight)


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize(
    "norm",
    [
        torch.nn.LayerNorm(16, eps=1e-5),
        torch.nn.LayerNorm(16, elementwise_affine=False),  # OLMo
        torch.nn.LayerNorm(16, bias=False),  # Cohere
        RootMeanSquare(16),
    ],
    ids=["LayerNorm", "OLMo", "Cohere", "Gemma"],
)
def test_a_stream_that_is_small_beside_a_norms_epsilon_is_separated(norm, size, generator):
    """The parts of a stream, each through the norm with the whole one's statistics, add up."""
    with torch.no_grad():
        one, other = size * torch.randn(2, 3, 5, 16, generator=generator)
        stream = one + other
        x, shift = norm(stream), norm(torch.zeros(16))
        parts = [_through(norm, stream, x, part) for part in (one, other)]
    torch.testing.assert_close(sum(parts) + shift, x, rtol=1e-3, atol=1e-4 * float(x.std()))


def test_a_layer_that_mixes_features_is_no_norm(generator):
    layer, stream = torch.nn.Linear(16, 16), torch.randn(3, 5, 16, generator=generator)
    with pytest.raises(InputError, match="does not scale each position"), torch.no_grad():
        _through(layer, stream, layer(stream), stream)
