"""Receipts: one file that proves one delivery, checked offline with nothing but the signers' public keys."""
