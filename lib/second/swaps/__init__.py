"""What a replacement costs the live model: per-token losses, perplexity, the swap sweep, and
healing (Whipp §5.6)."""

from lib.second.swaps.costs import (
    as_costs,
    as_perplexity,
    by_seed,
    joint_costs,
    joint_savings,
    joint_shares,
)
from lib.second.swaps.dearest import saved_on_dearest, savings_concentrated
from lib.second.swaps.elsewhere import printed_elsewhere
from lib.second.swaps.extra import extra_cost, median_extra_cost
from lib.second.swaps.healing import heal, residual_streams
from lib.second.swaps.inflation import cost_ratios
from lib.second.swaps.kept import KeptCosts, KeptOnMassive, kept_costs
from lib.second.swaps.losses import next_token_losses, perplexity, token_losses
from lib.second.swaps.printed import printed_claims, printed_swaps, printed_table4
from lib.second.swaps.products import ProductCosts, product_costs
from lib.second.swaps.sweep import delta_ppl, swap_sweep
from lib.second.swaps.table4 import behind_original, gap_table, healing_table

__all__ = [
    "KeptCosts",
    "KeptOnMassive",
    "ProductCosts",
    "as_costs",
    "as_perplexity",
    "behind_original",
    "by_seed",
    "cost_ratios",
    "delta_ppl",
    "extra_cost",
    "gap_table",
    "heal",
    "healing_table",
    "joint_costs",
    "joint_savings",
    "joint_shares",
    "kept_costs",
    "median_extra_cost",
    "next_token_losses",
    "perplexity",
    "printed_claims",
    "printed_elsewhere",
    "printed_swaps",
    "printed_table4",
    "product_costs",
    "residual_streams",
    "saved_on_dearest",
    "savings_concentrated",
    "swap_sweep",
    "token_losses",
]
