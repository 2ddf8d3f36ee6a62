"""won: federated nodes and owners; content-addressed, signed messages, delivery chains, tamper-evident logs."""
