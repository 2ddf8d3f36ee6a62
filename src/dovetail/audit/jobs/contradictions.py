"""The table `forks` after some messages were touched, put together in this process: it is small."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from dovetail.audit.jobs.search import pick
from dovetail.audit.transforms.forks import PAIR_KINDS

_SEPARATOR = b"\0"


def has_backward_edges(edges: pa.Table) -> bool:
    """Whether any of these edges leads to what is not older; `edge_forks` tells only of such."""
    return bool(pc.any(pc.greater_equal(edges["parent_created"], edges["child_created"])).as_py())


def replace_forks(present: pa.Table, made: pa.Table, touched: pa.Table) -> list[pa.Table]:
    """The forks that stay, and those that were made in the place of the others.

    A fork of two messages is replaced if one of them is touched. A group may have grown by a touched message that was
    not in it before: all groups about a subject are replaced if one of them has, or had, a touched message.
    """
    has_touched, had_touched = _overlaps(made, touched), _overlaps(present, touched)
    subjects, made_subjects = _subjects(present), _subjects(made)
    grown = pa.concat_arrays([subjects.filter(had_touched), made_subjects.filter(has_touched)])
    is_gone = pc.if_else(_is_group(present), pc.is_in(subjects, value_set=grown), had_touched)
    is_new = pc.if_else(_is_group(made), pc.is_in(made_subjects, value_set=grown), has_touched)
    return [present.filter(pc.invert(is_gone)), made.filter(is_new)]


def _is_group(forks: pa.Table) -> pa.Array:
    return pc.invert(pc.is_in(forks["kind"].combine_chunks(), value_set=pa.array(PAIR_KINDS)))


def _subjects(forks: pa.Table) -> pa.Array:
    """What each fork is about, with its fabric and kind."""
    names = [forks[name].combine_chunks().cast(pa.binary()) for name in ("fabric", "kind", "subject")]
    return pc.binary_join_element_wise(*names, pa.scalar(_SEPARATOR, pa.binary()))


def _overlaps(forks: pa.Table, touched: pa.Table) -> pa.Array:
    """Which of them have a touched message in evidence."""
    evidence = forks["evidence"].combine_chunks()
    row = pc.list_parent_indices(evidence)
    members = pa.table({"fabric": forks["fabric"].take(row), "message": pc.list_flatten(evidence), "row": row})
    hit = pick(members, touched)["row"].unique()
    return pc.is_in(pa.array(range(forks.num_rows), row.type), value_set=hit)
