"""The swarm fabric: peers that keep one DAG of messages complete over unreliable UDP (UEP-12)."""
