"""Train a small decoder language model: the recipe of the fixture models in data/models (`python -m
lib.second.training.loop`).

One model each of the three families, GPT-2 (sequential, GELU), GPT-NeoX (parallel, GELU) and Llama
(sequential, SwiGLU), six blocks of width 128, on the Wikipedia corpus with a 4,096-token byte-level
BPE of their own.
"""

import math
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from lib.second.base.bars import progress
from lib.second.base.kept import seal
from lib.second.base.paths import DATA, whole
from lib.second.swaps.losses import next_token_losses
from lib.second.texts.corpora import load_corpus
from lib.second.texts.windows import Windows, cut_windows

_WIDTH, _BLOCKS, _HEADS, _CONTEXT = 128, 6, 4, 256
FAMILIES = {
    # Llama's intermediate size gives its three matrices about the parameters of the others' two.
    "tiny-gpt2": dict(
        model_type="gpt2",
        n_embd=_WIDTH,
        n_layer=_BLOCKS,
        n_head=_HEADS,
        n_positions=_CONTEXT,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "tiny-neox": dict(
        model_type="gpt_neox",
        hidden_size=_WIDTH,
        num_hidden_layers=_BLOCKS,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _WIDTH,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
    ),
    "tiny-llama": dict(
        model_type="llama",
        hidden_size=_WIDTH,
        num_hidden_layers=_BLOCKS,
        num_attention_heads=_HEADS,
        intermediate_size=344,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
    ),
}


@dataclass(frozen=True)
class TrainingRun:
    """Budget of one training run."""

    steps: int = 1500
    batch: int = 16
    """windows a step"""
    seq_len: int = 128
    lr: float = 2e-3
    """peak of a cosine schedule with linear warm-up"""
    warmup: int = 100
    weight_decay: float = 0.1
    seed: int = 42


def build(family: str, vocab_size: int, seed: int) -> PreTrainedModel:
    """A randomly initialised model of one of FAMILIES."""
    torch.manual_seed(seed)
    config = dict(FAMILIES[family])
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), vocab_size=vocab_size, **special, **config)
    )


def train_tokenizer(documents: list[str], vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer."""
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        documents, vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>"
    )


def train(
    model: PreTrainedModel,
    data: Windows,
    held_out: Windows,
    run: TrainingRun,
    every: int = 100,
    look: Callable[[int], None] | None = None,
    at: Collection[int] = (),
    quiet: bool = False,
) -> pd.DataFrame:
    """Train `model` in place on windows `data` by AdamW; same seed, same machine, same weights.

    `look(step)` is called after each step in `at` (0: before the first) and may run the model, but
    must not change it. Returns the loss curve: columns step, train_loss (mean since the last row),
    held_out_loss, in nats per token.
    """
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": decay, "weight_decay": run.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ],
        lr=run.lr,
        betas=(0.9, 0.95),
    )
    shape = lambda s: min((s + 1) / run.warmup, 0.55 + 0.45 * math.cos(math.pi * s / run.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    generator = torch.Generator().manual_seed(run.seed)
    curve, recent = [], []
    model.train()
    if look and 0 in at:
        look(0)
    for step in progress(
        range(1, run.steps + 1), desc=f"training {type(model).__name__}", unit="step", disable=quiet
    ):
        chosen = torch.randint(len(data), (run.batch,), generator=generator)
        batch = data.tokens[chosen].to(model.device)
        logits = model(batch, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten()
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item())
        if look and step in at:
            look(step)
        if step % every == 0 or step == run.steps:
            curve.append(
                {
                    "step": step,
                    "train_loss": sum(recent) / len(recent),
                    "held_out_loss": held_out_loss(model, held_out),
                }
            )
            recent = []
    model.eval()
    return pd.DataFrame(curve)


@torch.no_grad()
def held_out_loss(model: PreTrainedModel, data: Windows, batch: int = 32) -> float:
    """Mean next-token loss in nats."""
    model.eval()
    parts = [
        next_token_losses(model(b := chunk.to(model.device), use_cache=False).logits, b)
        for chunk in data.tokens.split(batch)
    ]
    model.train()
    return float(torch.cat(parts).mean())


def make_fixture(
    family: str, folder: Path, run: TrainingRun | None = None, corpus: str = "wikipedia"
) -> None:
    """Train one fixture model and write it (float16 safetensors, tokenizer, loss curve) whole
    into `folder`."""
    run, text = run or TrainingRun(), load_corpus(corpus)
    tokenizer = train_tokenizer(text.fit)
    data = cut_windows(text.fit, tokenizer, run.seq_len, run.seed, corpus)
    held_out = cut_windows(text.eval, tokenizer, run.seq_len, run.seed, corpus)
    model = build(family, len(tokenizer), run.seed)
    curve = train(model, data, held_out.take(16_384, evenly=True), run)
    with whole(folder) as part:
        model.half().save_pretrained(part)
        tokenizer.save_pretrained(part)
        curve.round(4).to_csv(part / "loss.csv", index=False)
        seal(part, {"family": family, "corpus": corpus})


if __name__ == "__main__":
    for name in sys.argv[1:] or FAMILIES:
        make_fixture(name, DATA / "models" / name)
