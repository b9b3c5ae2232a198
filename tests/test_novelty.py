"""What layers add to the stream: by hand, by identities, and with planted FFNs."""

import numpy as np
import pytest
import torch

from lib.hooks import swap
from lib.stats import sums
from lib.swap.novelty import PAIRS, PARTS, cosines, mean_streams, split, sweep_parts, without_part
from lib.swap.sweep import token_losses
from lib.text.corpora import load_corpus
from lib.text.windows import cut_windows


@pytest.fixture(scope="module")
def windows(each_subject):
    text = load_corpus("wikipedia-sample").test
    return cut_windows(text, each_subject.tokenizer, 32, name="few").per_document(2, 6)


def seen(subject, tokens, block):
    """(h, leaving, y of the FFN) of a block in an ordinary pass, by hooks of our own."""
    found = {}
    block = subject.blocks[block]
    handles = [
        block.layer.register_forward_hook(
            lambda _, args, kwargs, out: found.update(
                h=args[0] if args else kwargs["hidden_states"],
                out=out[0] if isinstance(out, tuple) else out,
            ),
            with_kwargs=True,
        ),
        block.ffn.register_forward_hook(lambda _, args, y: found.update(y=y.clone())),
    ]
    with torch.no_grad():
        subject.model(tokens)
    for handle in handles:
        handle.remove()
    return found["h"], found["out"], found["y"]


def test_cosines_are_those_by_hand(each_subject, windows):
    """In these models nothing stands behind an FFN, so what is added is its output."""
    found = cosines(each_subject, windows)
    for b in (0, 3):
        h, out, y = seen(each_subject, windows.tokens, b)
        of_block = found[found.block == b]
        by_hand = {
            "update, h": torch.cosine_similarity(out - h, h, dim=-1),
            "added, h": torch.cosine_similarity(y, h, dim=-1),
            "added, what it is added to": torch.cosine_similarity(y, out - y, dim=-1),
        }
        for name, values in by_hand.items():
            expected = sums(values.numpy(), windows.document)
            np.testing.assert_allclose(of_block[name], expected, atol=1e-3)
            squares = sums(values.square().numpy(), windows.document)
            np.testing.assert_allclose(of_block[f"{name}, squared"], squares, atol=1e-3)
    means = found[[*PAIRS]].div(found.positions, axis=0)
    assert means.abs().max().max() <= 1.0
    assert (found.positions == 64).all() and len(found) == len(each_subject) * 6
    # Without the first positions of each window.
    later = cosines(each_subject, windows, skip=4)
    of_block = later[later.block == 3]
    expected = sums(by_hand["added, h"][:, 4:].numpy(), windows.document)
    np.testing.assert_allclose(of_block["added, h"], expected, atol=1e-3)
    assert (later.positions == 56).all()


def test_an_ffn_that_repeats_the_stream_is_aligned_with_it(each_subject, windows):
    class Repeats(torch.nn.Module):
        def forward(self, x):
            return 0.5 * self.h

    subject, repeats = each_subject, Repeats()
    block = subject.blocks[2]

    def remember(_, args, kwargs):
        repeats.h = args[0] if args else kwargs["hidden_states"]

    handle = block.layer.register_forward_pre_hook(remember, with_kwargs=True)
    setattr(block.layer, block.ffn_name, repeats)
    try:
        found = cosines.__wrapped__(subject, windows)
    finally:
        handle.remove()
        setattr(block.layer, block.ffn_name, block.original)
    means = found[found.block == 2].sum()
    assert means["added, h"] / means.positions == pytest.approx(1.0, abs=1e-4)
    assert means["norm_ratio"] / means.positions == pytest.approx(0.5, abs=1e-4)
    assert means["added, another h"] < means["added, h"]


def test_the_parts_are_what_they_say():
    torch.manual_seed(0)
    added, h = torch.randn(3, 4, 16), torch.randn(3, 4, 16)
    common = torch.nn.functional.normalize(torch.randn(16), dim=0)
    parts = split(added, h, common)
    along_h, along_common, across, as_much = (parts[name] for name in PARTS)
    np.testing.assert_allclose(torch.cosine_similarity(along_h, h, dim=-1).abs(), 1, rtol=1e-5)
    np.testing.assert_allclose((added - along_h).mul(h).sum(-1), 0, atol=1e-5)
    np.testing.assert_allclose(across.mul(h).sum(-1), 0, atol=1e-5)
    np.testing.assert_allclose(across @ common, 0, atol=1e-5)
    np.testing.assert_allclose(along_common @ common, added @ common, atol=1e-5)
    np.testing.assert_allclose(as_much.norm(dim=-1), along_h.norm(dim=-1), rtol=1e-4)
    # Nothing is left of what lies in the plane of h and the common direction.
    inside = split(along_h + along_common, h, common)["across"]
    np.testing.assert_allclose(inside, 0, atol=1e-5)


def test_losses_without_a_part_are_those_by_brute_force(each_subject, windows):
    subject = each_subject
    found = sweep_parts(subject, windows, windows, [1])
    common = mean_streams(subject, windows)[1]
    original = subject.blocks[1].ffn
    for part in PARTS:
        seen_h = {}

        class Without(torch.nn.Module):
            def forward(self, x):
                y = original(x)
                return y - split(y, seen_h["h"], common)[part]  # noqa: B023

        def remember(_, args, kwargs):
            seen_h["h"] = args[0] if args else kwargs["hidden_states"]  # noqa: B023

        layer = subject.blocks[1].layer
        handle = layer.register_forward_pre_hook(remember, with_kwargs=True)
        setattr(layer, subject.blocks[1].ffn_name, Without())
        try:
            with torch.no_grad():
                losses = token_losses(subject, windows.tokens).numpy()
        finally:
            handle.remove()
            setattr(layer, subject.blocks[1].ffn_name, original)
        expected = sums(losses, windows.document)
        np.testing.assert_allclose(found.changed[1, part], expected, rtol=1e-5)


def test_the_model_is_as_it_was_after_an_error(each_subject, windows):
    before = token_losses(each_subject, windows.tokens)
    common = torch.zeros(each_subject.d_model)
    with pytest.raises(KeyError), without_part(each_subject, 1, "no part", common):
        token_losses(each_subject, windows.tokens)
    assert torch.equal(token_losses(each_subject, windows.tokens), before)
    with swap(each_subject.blocks[1], each_subject.blocks[1].original):
        assert torch.equal(token_losses(each_subject, windows.tokens), before)
