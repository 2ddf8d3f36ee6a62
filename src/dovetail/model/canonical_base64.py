"""Base64 in its one canonical form, so that no two texts stand for the same bytes."""

from __future__ import annotations

import binascii


def encode_base64(data: bytes) -> str:
    """Encode with padding, on one line."""
    return binascii.b2a_base64(data, newline=False).decode()


def parse_base64(text: str) -> bytes:
    """Decode canonical base64; ValueError says, as the end of a sentence, what else it is."""
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ValueError("is not base64") from None
    # strict decoding still accepts any value of the unused bits in the last character
    if encode_base64(data[len(data) // 3 * 3 :]) != text[len(data) // 3 * 4 :]:
        raise ValueError("is not in canonical base64")
    return data
