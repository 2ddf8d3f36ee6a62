"""Exit codes of commands, besides 0 for success."""

EXIT_FAILED = 1
"""The command could not do its work."""
EXIT_MISUSE = 2
EXIT_NO = 3
"""The command did its work, and the answer is no."""
EXIT_NOT_REACHED = 4
"""A server cannot be reached, or refuses this client."""
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""The reader of our output closed the pipe."""
