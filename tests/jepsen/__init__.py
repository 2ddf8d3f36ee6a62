"""Set tests with real processes and faults: what was acknowledged, what arrived, what the audit says of the rest."""
