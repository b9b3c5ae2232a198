"""Train a small decoder language model: the recipe of the models in data/models.

    python -m lib.train tiny-neox-43        # family and seed; writes data/models/tiny-neox-43

Three families of six blocks of width 128 with a 4,096-token byte-level BPE of their own: GPT-2
(sequential, GELU), GPT-NeoX (parallel, GELU) and Llama (sequential, SwiGLU).
"""

import math
import sys
from collections.abc import Callable, Collection

import pandas as pd
import torch
from tokenizers import ByteLevelBPETokenizer
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from lib.cache import whole
from lib.linear import fit_maps, score
from lib.model import TINY, as_subject
from lib.text import Windows, cut_windows, load_corpus

# Llama's intermediate size gives its three matrices about the parameters of the others' two.
FAMILIES = {
    "tiny-gpt2": dict(
        model_type="gpt2",
        n_embd=128,
        n_layer=6,
        n_head=4,
        n_positions=256,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "tiny-neox": dict(
        model_type="gpt_neox",
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    ),
    "tiny-llama": dict(
        model_type="llama",
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=344,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    ),
}
LOOK = (0, 25, 50, 100, 200, 400, 800, 1500)  # steps at which the profile is taken


def build(family: str, vocab_size: int, seed: int) -> PreTrainedModel:
    """A randomly initialised model of one of FAMILIES."""
    torch.manual_seed(seed)
    config = dict(FAMILIES[family])
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    kind = config.pop("model_type")
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, vocab_size=vocab_size, **special, **config)
    )


def train_tokenizer(documents: list[str], vocab_size: int = 4096) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer."""
    bpe = ByteLevelBPETokenizer()
    end = "<|endoftext|>"
    bpe.train_from_iterator(documents, vocab_size, special_tokens=[end], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, eos_token=end, bos_token=end)


def train(
    model: PreTrainedModel,
    data: Windows,
    steps: int = 1500,
    batch: int = 16,
    lr: float = 2e-3,
    warmup: int = 100,
    weight_decay: float = 0.1,
    seed: int = 42,
    look: Callable[[int], None] | None = None,
    at: Collection[int] = (),
) -> list[float]:
    """Train `model` in place by AdamW on `batch` windows a step, cosine to a tenth of the peak rate
    after a linear warm-up; same seed, same machine, same weights. No window is read twice where
    there are enough; else they are drawn with replacement. Returns each step's loss, nats.

    `look(step)` is called before the first (0) and after each step in `at`, with the model in eval
    mode; it must not change it.
    """
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    rate = lambda s: min((s + 1) / warmup, 0.55 + 0.45 * math.cos(math.pi * s / steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    generator, losses = torch.Generator().manual_seed(seed), []
    if steps * batch <= len(data):
        order = torch.randperm(len(data), generator=generator)[: steps * batch]
    else:
        order = torch.randint(len(data), (steps * batch,), generator=generator)
    for step in tqdm(range(steps + 1), desc="training", delay=2, leave=False):
        if look and step in at:
            model.eval()
            look(step)
        if step == steps:
            break
        model.train()
        chosen = order[step * batch : (step + 1) * batch]
        tokens = data.tokens[chosen].to(model.device)  # [batch, seq_len]
        logits = model(tokens, use_cache=False).logits[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return losses


def make_fixture(name: str) -> None:
    """Train one model (family-seed) and write it whole into data/models: float16 safetensors,
    tokenizer, the training loss and R²_lin of its blocks along training."""
    family, seed = name.rpartition("-")[0], int(name.rpartition("-")[2])
    text, unseen = load_corpus("wikipedia"), load_corpus("wikipedia-sample")
    documents = text.fit + text.test[:-13]  # the last articles are wikipedia-sample
    tokenizer = train_tokenizer(documents)
    data = cut_windows(documents, tokenizer, 128, seed, "wikipedia")
    fit = cut_windows(text.fit, tokenizer, 128, name="fit").take(40_960)
    held_out = cut_windows(unseen.fit + unseen.test, tokenizer, 128, name="held out")
    held_out = held_out.take(12_288, evenly=True)
    model, profile = build(family, len(tokenizer), seed), []

    def look(step: int) -> None:
        frozen = as_subject(model, tokenizer, name)
        for block, r2 in enumerate(score(frozen, held_out, fit_maps(frozen, fit)).r2()):
            profile.append({"step": step, "block": block, "r2_lin": round(r2.value, 4)})
        model.requires_grad_(True)

    losses = train(model, data, seed=seed, look=look, at=LOOK)
    with whole(TINY / name) as part:
        model.half().save_pretrained(part)
        tokenizer.save_pretrained(part)
        pd.DataFrame(profile).to_csv(part / "profile.csv", index=False)
        steps = pd.Series(losses).groupby(lambda i: 100 * (i // 100 + 1)).mean()
        pd.DataFrame({"step": steps.index, "loss": steps.round(4)}).to_csv(
            part / "loss.csv", index=False
        )


if __name__ == "__main__":
    for fixture in sys.argv[1:]:
        make_fixture(fixture)
