"""The only asyncio and sockets: each shell feeds a core, journals what it saw, sends, and sets the timer again."""
