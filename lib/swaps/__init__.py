"""What a replacement costs the live model: per-token losses, perplexity, the swap sweep, and
healing (Whipp §5.6)."""

from lib.swaps.costs import joint_costs, joint_savings
from lib.swaps.dearest import savings_concentrated
from lib.swaps.elsewhere import printed_elsewhere
from lib.swaps.healing import heal, residual_streams
from lib.swaps.inflation import cost_ratios
from lib.swaps.losses import next_token_losses, perplexity, token_losses
from lib.swaps.products import ProductCosts, product_costs
from lib.swaps.sweep import delta_ppl, swap_sweep

__all__ = [
    "ProductCosts",
    "cost_ratios",
    "delta_ppl",
    "heal",
    "joint_costs",
    "joint_savings",
    "next_token_losses",
    "perplexity",
    "printed_elsewhere",
    "product_costs",
    "residual_streams",
    "savings_concentrated",
    "swap_sweep",
    "token_losses",
]
