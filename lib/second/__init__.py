"""The Nonlinearity Budget: how much of a transformer's FFN is nonlinear, and where in depth should
it go?

Ten rooms, one for each station of the data's way; imports only ever point to a room above:

    base -> stats -> texts -> models -> linear -> probes -> swaps -> gates -> training -> reports
"""

import warnings

# Every report would open with tqdm's advice to install widgets, which break the rendering of
# committed notebooks.
warnings.filterwarnings("ignore", message="IProgress not found")
