"""Readers for the forms in which won messages arrive, quickest first."""
