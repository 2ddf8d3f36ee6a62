"""Set tests with real processes and faults: what was acknowledged, what arrived, what the audit says about the rest."""
