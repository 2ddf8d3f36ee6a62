"""Jobs: what `audit run` and `audit follow` start, also usable with spark-submit."""
