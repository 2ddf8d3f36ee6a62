"""Receipts: one file that proves one delivery, verified offline with only the signers' public keys."""
