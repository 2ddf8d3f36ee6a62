"""The wire vectors of tests/vectors/swarm.json, by layer."""

from __future__ import annotations

import json
from pathlib import Path

DOCUMENT = json.loads((Path(__file__).parent.parent / "vectors" / "swarm.json").read_text())
VECTORS = DOCUMENT["vectors"]


def of_layer(layer: str) -> list[dict]:
    return [vector for vector in VECTORS if vector["layer"] == layer]


def named(name: str) -> dict:
    return next(vector for vector in VECTORS if vector["name"] == name)


def raw(name: str) -> bytes:
    return bytes.fromhex(named(name)["hex"])
