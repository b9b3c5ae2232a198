"""How the tiny models of this folder were trained.

    python data/models/make.py tiny-neox-43        # family and seed, about 13 core-minutes each
    python data/models/make.py decoders            # two of notebook 20's, some minutes each

Four families of six blocks of width 128, all on the same text with the same 4,096-token byte-level
BPE: GPT-2 (sequential, GELU), GPT-NeoX (parallel, GELU), Llama (sequential, SwiGLU) and the same
Llama with an ungated GELU FFN (Arcee's architecture).

`decoders/uniform` and `decoders/cosine` are notebook 20's, seed 0, after one pass: equal FFN
widths, and wide early FFNs narrowing along a cosine.
"""

import sys
from pathlib import Path

import pandas as pd
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lib.files import atomic_write
from lib.linear import regression
from lib.models.parts import as_subject
from lib.report import start
from lib.studies.study import open_lab
from lib.text.corpora import load_corpus
from lib.text.windows import cut_windows
from lib.training.loop import Recipe, train, train_tokenizer
from lib.training.widths import taper

HERE = Path(__file__).parent
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
    # Llama with two matrices and a GELU in the place of three and a gate, of as many parameters.
    "tiny-ungated": dict(
        model_type="arcee",
        hidden_act="gelu",
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=516,
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


def make_fixture(name: str) -> None:
    """Train one model (family-seed, or family alone for seed 42) and write it whole into this
    folder: float16 safetensors, tokenizer, the training loss and R²_lin of its blocks along
    training."""
    family, _, seed = name.rpartition("-") if name[-1].isdecimal() else (name, "", "42")
    text, unseen = load_corpus("wikipedia"), load_corpus("wikipedia-sample")
    documents = text.fit + text.test[:-13]  # the last articles are wikipedia-sample
    tokenizer = train_tokenizer(documents)
    data = cut_windows(documents, tokenizer, 128, int(seed), "wikipedia")
    fit = cut_windows(text.fit, tokenizer, 128, name="fit").take(40_960)
    held_out = cut_windows(unseen.fit + unseen.test, tokenizer, 128, name="held out")
    held_out = held_out.take(12_288, evenly=True)
    model, profile = build(family, len(tokenizer), int(seed)), []

    def look(step: int, _) -> None:
        frozen = as_subject(model, tokenizer, name)
        for block, r2 in enumerate(regression.r2(frozen, held_out, regression.fit(frozen, fit)).r2):
            profile.append({"step": step, "block": block, "r2_lin": round(r2, 4)})
        model.requires_grad_(True)

    losses = train(model, data, Recipe(seed=int(seed)), look=look, at=LOOK)
    with atomic_write(HERE / name) as part:
        model.half().save_pretrained(part)
        tokenizer.save_pretrained(part)
        pd.DataFrame(profile).to_csv(part / "profile.csv", index=False)
        steps = pd.Series(losses).groupby(lambda i: 100 * (i // 100 + 1)).mean()
        pd.DataFrame({"step": steps.index, "loss": steps.round(4)}).to_csv(
            part / "loss.csv", index=False
        )


def keep_decoders() -> None:
    """Write the two decoders of notebook 20 into decoders/: float16 safetensors and tokenizer. They
    are trained first if the cache does not have them."""
    lab = open_lab(start("20_wider_early", "study", None, None))
    cosine = taper(lab.n_layers, lab.d_ff, 1.5, 0.5, "cosine", 2)
    for name, widths in {"uniform": lab.uniform, "cosine": cosine}.items():
        model = lab.model(widths, seed=0, passes=1)
        with atomic_write(HERE / "decoders" / name) as part:
            model.half().save_pretrained(part)
            lab.tokenizer.save_pretrained(part)


if __name__ == "__main__":
    for fixture in sys.argv[1:]:
        if fixture == "decoders":
            keep_decoders()
        else:
            make_fixture(fixture)
