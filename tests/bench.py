"""What a measurement costs, as ratios within one run (`make bench`); nothing is asserted, for
machines differ.

measured pass   statistics of all blocks, all fits and the 5-fold cross-validation, against one
plain forward pass swap sweep      every block swapped in turn, against evaluating the whole network
once per block peak memory     of the measured pass over ten times the tokens, against the pass
itself
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import torch

from lib.base import cache
from lib.linear import recoverability
from lib.models import Subject, load_subject, swap
from lib.swaps import swap_sweep, token_losses
from lib.texts import Windows, cut_windows, load_corpus


def seconds(call) -> tuple[float, object]:
    with redirect_stdout(StringIO()):
        start = time.perf_counter()
        result = call()
    return time.perf_counter() - start, result


def load(model: str, corpus: str, n_tokens: int) -> tuple[Subject, Windows]:
    """The subject and its windows, with an empty cache of their own."""
    cache.CACHE = Path(tempfile.mkdtemp())
    subject = load_subject(model)
    with redirect_stdout(StringIO()):
        data = cut_windows(load_corpus(corpus).fit, subject.tokenizer, 128, name=corpus)
    return subject, data.take(n_tokens)


@torch.no_grad()
def plain(subject, data) -> None:
    for chunk in data.tokens.split(16):
        subject.model(chunk.to(subject.device), use_cache=False)


def whole_network_sweep(subject, data, maps) -> None:
    token_losses(subject, data, 8)
    for block in subject.blocks:
        with swap(block, maps[block.index]):
            token_losses(subject, data, 8)


def peak(model: str, corpus: str, n_tokens: int, answer) -> None:
    """Peak resident memory in MiB of a process that does the measured pass and nothing else."""
    subject, data = load(model, corpus, n_tokens)
    seconds(lambda: recoverability(subject, data))
    answer.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--corpus", default="wikipedia")
    parser.add_argument("--tokens", type=int, default=30_720)
    parser.add_argument(
        "--no-memory",
        action="store_true",
        help="leave out the memory measurement, which takes minutes",
    )
    options = parser.parse_args()
    subject, data = load(options.model, options.corpus, options.tokens)
    plain(subject, data[:16])  # warm up
    forward, _ = seconds(lambda: plain(subject, data))
    measured, found = seconds(lambda: recoverability(subject, data))
    print(
        f"{subject}\n{data}\n{data.n_tokens:,} tokens, {torch.get_num_threads()} threads, "
        f"{subject.device}",
        flush=True,
    )
    print(
        f"measured pass: {measured:.1f} s = {measured / forward:.2f} x a plain forward pass "
        f"({forward:.1f} s)",
        flush=True,
    )
    tail = data[-8:]
    whole, _ = seconds(lambda: whole_network_sweep(subject, tail, found.maps))
    sweep, _ = seconds(lambda: swap_sweep(subject, tail, found.maps))
    print(
        f"swap sweep over {len(subject)} blocks: {sweep:.1f} s = {sweep / whole:.2f} x "
        f"evaluating the whole network once per block ({whole:.1f} s)",
        flush=True,
    )
    if options.no_memory:
        return
    context, peaks = multiprocessing.get_context("spawn"), []
    for n_tokens in (options.tokens, 10 * options.tokens):
        answer = context.Queue()
        process = context.Process(
            target=peak, args=(options.model, options.corpus, n_tokens, answer)
        )
        process.start()
        peaks.append(answer.get())
        process.join()
    print(
        f"peak memory: {peaks[1]:,.0f} MiB for {10 * options.tokens:,} tokens = "
        f"{peaks[1] / peaks[0]:.2f} x that for {options.tokens:,} ({peaks[0]:,.0f} MiB)"
    )


if __name__ == "__main__":
    main()
