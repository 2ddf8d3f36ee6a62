"""Transparency log formats, without I/O: leaf, Merkle tree, checkpoint, signed note, named keys."""
