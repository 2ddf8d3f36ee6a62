"""The JSON Schema of receipts, stored beside this module as `receipt.schema.json`; run this module to regenerate it.

A schema describes the form of a file. Only `verify_receipt` can say whether it is true.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dovetail.receipt.format import Receipt

SCHEMA_FILE = Path(__file__).with_name("receipt.schema.json")


def receipt_schema() -> dict[str, Any]:
    """The schema of all kinds of receipt."""
    schema = msgspec.json.schema(Receipt)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Dovetail receipt", **schema}


def encode_schema() -> bytes:
    """The bytes of the schema file."""
    return msgspec.json.format(msgspec.json.encode(receipt_schema(), order="sorted"), indent=1) + b"\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_bytes(encode_schema())
