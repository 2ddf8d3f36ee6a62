"""Readers for the forms in which won messages arrive, fastest first."""
