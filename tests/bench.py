"""What a measured pass, the swap sweep and training cost, as ratios within one run: make bench.

Design limits: a measured pass at most 1.2 plain forward passes, the sweep at most 0.65 of whole
passes, training at least 0.4 of the rate of a float32 product on the same threads.
"""

import os
import tempfile
import time

import torch

os.environ["TQDM_DISABLE"] = "1"
from lib.linear import fit_maps
from lib.model import load_subject
from lib.moments import _collect
from lib.report import PROFILES
from lib.swap import losses, sweep
from lib.text import cut_windows, load_corpus
from lib.train import build, train

TOKENS = 2_048


def seconds(run) -> float:
    """The quicker of two runs."""
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    subject = load_subject(PROFILES["laptop"]["model"])
    text = load_corpus("wikipedia")
    windows = cut_windows(text.test, subject.tokenizer, 128).take(TOKENS)
    print(subject, windows, f"{torch.get_num_threads()} thread(s)", sep="\n")
    plain = lambda: [losses(subject, t) for t in windows.tokens.split(16)]
    body = lambda: [subject.model.base_model(t, use_cache=False) for t in windows.tokens.split(16)]
    with torch.no_grad():
        whole, blocks_only = seconds(plain), seconds(body)
    measured = seconds(lambda: _collect.__wrapped__(subject, windows))
    print(f"measured pass: {measured / blocks_only:.2f} of a pass through the blocks")
    print(f"               {measured / whole:.2f} of a plain forward pass with its losses")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NONLINEARITY_CACHE"], kept = folder, os.environ.get("NONLINEARITY_CACHE")
        subject.__dict__["recipe"] = None  # nothing is kept or found
        few = windows[:16]
        maps = fit_maps(subject, windows[:16]).plain
        swept = seconds(lambda: sweep(subject, few, maps))
        os.environ.pop("NONLINEARITY_CACHE")
        if kept:
            os.environ["NONLINEARITY_CACHE"] = kept
    passes = (len(maps) + 1) * whole * len(few) / len(windows)
    print(f"sweep: {swept / passes:.2f} of evaluating the whole network once a block")

    model = build("tiny-gpt2", 4096, 42)
    data = cut_windows(text.fit, load_subject("tiny-gpt2").tokenizer, 128)
    steps, n = 12, sum(p.numel() for p in model.parameters() if p.dim() >= 2)
    taken = seconds(lambda: train(model, data, steps=steps))
    layers, width, length = 6, 128, 128
    tokens = 16 * length
    flops = 6 * n * tokens + 12 * layers * width * length * tokens  # tied head counted once, in n
    a = torch.randn(1024, 1024)
    product = seconds(lambda: [a @ a for _ in range(20)])
    rate, best = steps * flops / taken, 20 * 2 * 1024**3 / product
    print(
        f"training: {rate / best:.2f} of a float32 product "
        f"({rate / 1e9:.0f} of {best / 1e9:.0f} GFLOP/s)"
    )


if __name__ == "__main__":
    main()
