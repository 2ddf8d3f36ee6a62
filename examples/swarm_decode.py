"""Decode one captured message and check its proof of work.

python examples/swarm_decode.py
"""

from __future__ import annotations

from dovetail.swarm.content import check_work, decode_content, message_address

CAPTURED = "7910051e4bad8967452301e86be5cf8b013c000068656c6c6f20737761726d"


def main() -> None:
    """Print what the bytes say."""
    data = bytes.fromhex(CAPTURED)
    check_work(data)
    content = decode_content(data)
    print(f"{message_address(data).hex()[:16]} {content.timestamp_ms} ttl {content.ttl_epochs}: {content.payload!r}")


if __name__ == "__main__":
    main()
