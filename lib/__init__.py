"""The Nonlinearity Budget."""
