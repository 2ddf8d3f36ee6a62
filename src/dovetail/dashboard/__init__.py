"""The live web page: what the servers are doing, every message, the latest audit. It only reads."""
