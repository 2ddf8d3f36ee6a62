"""won: federated nodes and owners; content-addressed, signed messages, delivery chains, logs that show any change."""
