"""The audit's tables as one self-contained page, as JSON and as a short terminal summary; needs no Spark."""
