"""The Hugging Face hub, asked under a time limit and told in one sentence."""

import threading
import time
from collections.abc import Callable
from queue import Empty, Queue
from typing import TypeVar

from lib.second.base.errors import InputError, reason

SECONDS = 60.0
"""how long a step may go on without a byte"""
_T = TypeVar("_T")
_LOG_IN = "check the name, and log in with `hf auth login` if it is private or gated"
_STATUS = {
    401: ("401, it has nothing of that name, or only for who is logged in", _LOG_IN),
    403: ("403, it does not let you read it", _LOG_IN),
    404: ("404, it has nothing of that name", _LOG_IN),
    429: ("429, too many requests", "wait a few minutes, or log in with `hf auth login`"),
}


def limited(step: Callable[[Callable[[], None]], _T]) -> _T:
    """The value of `step(heard)`, which calls `heard()` whenever something has come.

    Raises TimeoutError when SECONDS pass without that, whatever a library waits for or tries again;
    its thread is left behind.
    """
    last, done = [time.monotonic()], Queue()

    def heard() -> None:
        last[0] = time.monotonic()

    def work() -> None:
        try:
            done.put((step(heard), None))
        except BaseException as error:  # raised again below
            done.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    while (left := last[0] + SECONDS - time.monotonic()) > 0:
        try:
            value, error = done.get(timeout=left)
        except Empty:
            continue
        if error is not None:
            raise error
        return value
    raise TimeoutError(f"no byte for {SECONDS:g} seconds")


def asked(kind: str, name: str):
    """What the hub says of a "model" or a "dataset": its commit, and of a model the digest of each
    file. It is asked once, for the library would try again for minutes at each file."""
    from huggingface_hub import HfApi

    api = HfApi()
    if kind == "dataset":
        return limited(lambda _: api.dataset_info(name, timeout=SECONDS))
    return limited(lambda _: api.model_info(name, files_metadata=True, timeout=SECONDS))


def status(error: BaseException) -> int | None:
    """The hub's HTTP status that an error holds."""
    return getattr(getattr(error, "response", None), "status_code", None)


def refusal(what: str, error: BaseException, instead: str) -> InputError:
    """The one sentence for `what` could not be had of the hub, with what to do `instead`."""
    if isinstance(error, InputError):
        return error
    code = status(error)
    if code in _STATUS:
        why, way = _STATUS[code]
    elif code:
        why, way = f"{code}, it failed", "try again later"
    else:
        why, way = reason(error), "check the network"
    return InputError(
        f"{what} could not be had from the Hugging Face hub ({why}): {way}, {instead}."
    )
