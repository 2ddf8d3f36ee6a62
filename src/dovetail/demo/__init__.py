"""The demo: all three fabrics on loopback, traffic with injected faults, and what the audit finds of them."""
