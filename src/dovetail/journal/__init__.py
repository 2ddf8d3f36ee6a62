"""The journal: durable, append-only, tamper-evident."""
