"""The live web page: what the servers do now, every message that exists, the latest audit. It only reads."""
