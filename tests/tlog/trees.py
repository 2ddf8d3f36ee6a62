from dovetail.tlog.tree import Frontier


def root_of(leaf_hashes):
    """The root over leaf hashes in order."""
    frontier = Frontier()
    for leaf in leaf_hashes:
        frontier.append(leaf)
    return frontier.root()
