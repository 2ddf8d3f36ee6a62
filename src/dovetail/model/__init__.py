"""The vocabulary that every package shares: hops, addresses, times, errors."""
