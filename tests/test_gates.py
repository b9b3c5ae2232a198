"""Gates, look-ups and token splits against known answers."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from lib.errors import InputError
from lib.gating.gates import (
    KINDS,
    Routed,
    auc_by_document,
    choose_gate,
    fit_gate,
    fit_gates,
    fit_loss_gate,
    linear_suffices,
    on_text,
    split_gate_text,
)
from lib.gating.increases import distribution, loss_increases
from lib.gating.routers import FixedScores, random_scores
from lib.gating.routing import TopShare
from lib.gating.tokens import (
    by_type,
    next_token_entropy,
    often,
    raw_embedding,
    smoothed_token_mean,
    spelled,
    token_kinds,
)
from lib.hooks import capture
from lib.linear.affine import AffineMap, MassiveKeptMap, constant
from lib.linear.candidates import n_params
from lib.stats import interval
from lib.swap.sweep import token_sweep


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
    maps = {b: fits.maps[b] for b in (1, 4)}
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
    maps, text, here = {4: fits.maps[4]}, split_gate_text(test, 64 * 10), test
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
    table = distribution(subject, test, {2: fits.maps[2], 3: constant(torch.zeros(128))})
    increase = loss_increases(subject, test, {2: fits.maps[2]}).loss_increase[2]
    of_block = table[table.block == 2]
    assert of_block["95%"].iloc[0] == pytest.approx(np.quantile(increase, 0.95))
    assert of_block.within.sum() == (abs(increase) < 0.05).sum()
    assert of_block.gain.sum() == (increase < 0).sum()
    assert of_block.increase.sum() == pytest.approx(increase.sum())
    n_top = (increase >= np.quantile(increase, 0.95)).sum()
    assert of_block.top.iloc[0] == pytest.approx(np.sort(increase, axis=None)[-n_top:].sum())
    assert set(table.block) == {2, 3}


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
    shares = {"always": 1.0, "never": 0.0}
    routers = {n: TopShare(random_scores(test, [2])[2], share) for n, share in shares.items()}
    routed = {(2, n): Routed(block.ffn, fits.repaired[2], r) for n, r in routers.items()}
    swept = token_sweep(subject, test, routed | {2: fits.repaired[2]})
    np.testing.assert_allclose(swept[2, "always"], swept[2], atol=1e-5)
    np.testing.assert_allclose(swept[2, "never"], swept[None], atol=1e-5)


def test_a_gate_routes_as_its_own_mask_does(subject, test, fits, rows):
    gate = fit_gate(rows[0].numpy(), rows[0][:, 0].numpy() > rows[0][:, 0].median().item())
    ffn, repaired = subject.blocks[2].ffn, fits.repaired[2]

    class ByHand(torch.nn.Module):
        def forward(self, x):
            to_map = gate(x) & ~repaired.massive(x)
            return torch.where(to_map[..., None], repaired(x), ffn(x))

    swept = token_sweep(
        subject, test, {(2, "gate"): Routed(ffn, repaired, gate), (2, "by hand"): ByHand()}
    )
    np.testing.assert_allclose(swept[2, "gate"], swept[2, "by hand"], atol=1e-5)


def test_need_read_by_two_roads(subject, test, fits):
    """δ of a position from the swept losses, and from two runs of the whole model by hand."""
    swept = token_sweep(subject, test[:2], {1: fits.maps[1]})
    block = subject.blocks[1]
    handle = block.ffn.register_forward_hook(lambda _, args, y: fits.maps[1](args[0]))
    logits = subject.model(test.tokens[:2]).logits.double().log_softmax(-1)
    handle.remove()
    base = subject.model(test.tokens[:2]).logits.double().log_softmax(-1)
    target = test.tokens[:2, 1:, None]
    increase = (base - logits)[:, :-1].gather(2, target)[..., 0].numpy()
    np.testing.assert_allclose(swept[1] - swept[None], increase, atol=1e-5)


def test_kept_loss_increases_are_the_measured_ones(subject, test, fits):
    """To five decimals, with the rows that the FFN read and the tokens at them."""
    maps = {b: fits.maps[b] for b in (1, 3)}
    kept, measured = (loss_increases(subject, test[:6], maps, keep) for keep in (True, False))
    for b in maps:
        np.testing.assert_allclose(kept.loss_increase[b], measured.loss_increase[b], atol=6e-6)
        own = capture(subject, test[:6], [b])[b][0][:, :-1].numpy()
        np.testing.assert_array_equal(kept.x[b], own)
        assert kept.rows(b)[0].shape == (kept.token.size, subject.d_model)
    np.testing.assert_array_equal(kept.token, test.tokens[:6, subject.n_start : -1])
    np.testing.assert_array_equal(kept.next_token[:, :-1], kept.token[:, 1:])


def test_entropy_is_that_of_the_prediction(subject, test):
    found = next_token_entropy(subject, test[:2])
    p = subject.model(test.tokens[:2]).logits.double().softmax(-1).detach().numpy()
    np.testing.assert_allclose(found, -(p * np.log(p)).sum(-1), rtol=1e-4)


def test_massive_tokens_keep_the_ffn_whatever_the_router_says():
    ffn, affine = torch.nn.Linear(4, 4), AffineMap(torch.zeros(4, 4), torch.zeros(4))
    repaired = MassiveKeptMap(affine.weight, affine.bias, torch.tensor([1.0, 0, 0, 0]), 5.0)
    x = torch.zeros(1, 3, 4)
    x[0, 1, 0] = 9.0
    routed = Routed(ffn, repaired, TopShare(FixedScores(np.ones((1, 3))), 1.0))
    y = routed(x)
    assert torch.equal(y[0, 1], ffn(x[0, 1])) and not y[0, 0].any()
    assert routed.linear.tolist() == [[True, False, True]]
    other = repaired.with_affine(constant(torch.ones(4)))
    assert torch.equal(other.massive(x), repaired.massive(x)) and torch.equal(
        other(x), torch.ones(1, 3, 4)
    )


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
