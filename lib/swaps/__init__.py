"""What a replacement costs the live model: per-token losses, perplexity, the swap sweep, and
healing (Whipp §5.6)."""

from lib.swaps.extra import extra_cost
from lib.swaps.healing import heal, residual_streams
from lib.swaps.losses import next_token_losses, perplexity, token_losses
from lib.swaps.products import ProductCosts, product_costs
from lib.swaps.sweep import delta_ppl, swap_sweep

__all__ = [
    "ProductCosts",
    "delta_ppl",
    "extra_cost",
    "heal",
    "next_token_losses",
    "perplexity",
    "product_costs",
    "residual_streams",
    "swap_sweep",
    "token_losses",
]
