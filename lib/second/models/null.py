"""The null subject: an architecture whose weights were drawn, not trained."""

import copy

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel


def draw(config: PretrainedConfig, seed: int = 42) -> PreTrainedModel:
    """A float32 model on the CPU with the random weights that its own configuration prescribes.
    The same seed gives the same weights, and the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # A copy, for the type of the weights is noted in the configuration.
        return AutoModelForCausalLM.from_config(
            copy.deepcopy(config), dtype=torch.float32, trust_remote_code=False
        )
