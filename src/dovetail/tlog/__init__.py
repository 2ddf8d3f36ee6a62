"""Formats of the transparency log, without I/O: leaf, Merkle tree, checkpoint, signed note, named keys."""
