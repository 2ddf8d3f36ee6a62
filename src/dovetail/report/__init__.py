"""The audit's tables as one self-contained page, as JSON and as a few lines for a terminal; needs no Spark."""
