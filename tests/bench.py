"""What a measured pass, the swap sweep and training cost, as ratios within one run: make bench.

Design limits: a measured pass at most 1.2 plain forward passes, the sweep at most 0.65 of whole
passes, training at least 0.4 of the rate of a float32 product on the same threads, and a decoder's
at most 1.1 times the time of stock Llama in transformers.Trainer. Beside it, without a limit, what
torch.compile leaves of a decoder's training time.
"""

import os
import tempfile
import time

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from lib.linear.moments import collect
from lib.linear.regression import fit_maps
from lib.models.loading import load_subject
from lib.models.names import PROFILES
from lib.swap.sweep import next_token_losses, token_losses, token_sweep
from lib.text.corpora import load_corpus
from lib.text.windows import Windows, cut_windows
from lib.training.decoder import Shape, build_decoder
from lib.training.loop import TrainConfig, train

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

    def plain():
        return [token_losses(subject, t) for t in windows.tokens.split(16)]

    def body():
        return [subject.model.base_model(t, use_cache=False) for t in windows.tokens.split(16)]

    with torch.no_grad():
        whole, blocks_only = seconds(plain), seconds(body)
    measured = seconds(lambda: collect.__wrapped__(subject, windows))
    print(f"measured pass: {measured / blocks_only:.2f} of a pass through the blocks")
    print(f"               {measured / whole:.2f} of a plain forward pass with its losses")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NONLINEARITY_CACHE"], kept = folder, os.environ.get("NONLINEARITY_CACHE")
        subject.__dict__["loaded_as"] = None  # nothing is kept or found
        few = windows[:16]
        fitted = fit_maps(subject, few)["all positions"]
        # Every fourth block: what a sweep saves depends on depth alone, and evenly.
        maps = {b: fitted[b] for b in [*fitted][::4]}
        swept = seconds(lambda: token_sweep(subject, few, maps))
        os.environ.pop("NONLINEARITY_CACHE")
        if kept:
            os.environ["NONLINEARITY_CACHE"] = kept
    steps_per_epoch = whole * len(few) / len(windows)
    a_swap = (swept - steps_per_epoch) / len(maps)
    n = len(subject)  # what all of them would take
    in_passes = (steps_per_epoch + n * a_swap) / ((n + 1) * steps_per_epoch)
    print(f"sweep: {in_passes:.2f} of evaluating the whole network once a block")

    model = load_subject("tiny-gpt2").model.requires_grad_(True)
    data = cut_windows(text.fit, load_subject("tiny-gpt2").tokenizer, 128)
    steps, n = 12, sum(p.numel() for p in model.parameters() if p.dim() >= 2)
    taken = seconds(lambda: train(model, data, TrainConfig(steps)))
    layers, width, length = 6, 128, 128
    tokens = 16 * length
    flops = 6 * n * tokens + 12 * layers * width * length * tokens  # tied head counted once, in n
    a = torch.randn(1024, 1024)
    product = seconds(lambda: [a @ a for _ in range(20)])
    best = 20 * 2 * 1024**3 / product
    report("training", steps * flops / taken, best)
    decoder(best)
    large_vocabulary()


def report(what: str, rate: float, best: float) -> None:
    print(f"{what}: {rate / best:.2f} of a float32 product "
          f"({rate / 1e9:.0f} of {best / 1e9:.0f} GFLOP/s)")  # fmt: skip


def decoder(best: float) -> None:
    """The decoder of notebooks 17 to 21 beside stock Llama in transformers.Trainer."""
    steps, batch, shape = 30, 16, dict(vocab_size=512, num_hidden_layers=12, hidden_size=48)
    tokens = torch.randint(512, (steps * batch, 64))
    data = Windows(tokens, torch.zeros(len(tokens)).numpy(), "random tokens")
    ours = build_decoder([128] * 12, Shape(48, 3, 512, 64))
    taken = seconds(lambda: train(ours, data, TrainConfig(steps, batch, warmup=1)))
    # The kernels are built before the clock runs.
    train(ours, data, TrainConfig(2, batch, warmup=1), compiled=True)
    built = seconds(lambda: train(ours, data, TrainConfig(steps, batch, warmup=1), compiled=True))
    config = LlamaConfig(**shape, intermediate_size=128, num_attention_heads=3)
    rows = [{"input_ids": t, "labels": t} for t in tokens]
    with tempfile.TemporaryDirectory() as folder:
        how = dict(max_steps=steps, per_device_train_batch_size=batch, report_to=[])
        how |= dict(save_strategy="no", logging_strategy="no", disable_tqdm=True)
        stock = Trainer(LlamaForCausalLM(config), TrainingArguments(folder, **how), None, rows)
        beside = seconds(stock.train)
    ours.set_attn_implementation("eager")  # its products are counted
    with FlopCounterMode(display=False) as counter:
        ours(tokens[:1], use_cache=False)
    flops = 3 * counter.get_total_flops() * steps * batch
    report("decoder", flops / taken, best)
    print(f"         {taken / beside:.2f} of the time of stock Llama in transformers.Trainer")
    print(f"         {built / taken:.2f} of its own time with torch.compile")


def large_vocabulary() -> None:
    """Losses over Gemma's vocabulary, beside the same with everything in float64."""
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(1, 257, 262_144, generator=generator)
    tokens = torch.randint(262_144, (1, 257), generator=generator)

    def all_in_float64() -> torch.Tensor:
        log_sum = torch.cat([row.double().logsumexp(-1) for row in logits[0, :-1].split(32)])
        return log_sum - logits[0, :-1].gather(1, tokens[0, 1:, None])[:, 0].double()

    ours, theirs = seconds(lambda: next_token_losses(logits, tokens)), seconds(all_in_float64)
    off = (next_token_losses(logits, tokens)[0] - all_in_float64()).abs().max()
    print(f"losses over 262,144 tokens: {ours / theirs:.2f} of the time of all in float64, "
          f"which they miss by at most {off:.0e} nats")  # fmt: skip


if __name__ == "__main__":
    main()
