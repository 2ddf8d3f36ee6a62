"""`python -m dovetail`, and the command `dovetail`."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process; Ctrl-C ends it silently, even during imports."""
    try:
        from dovetail.cli.main import main as run

        code = run()
    except KeyboardInterrupt:
        code = 130
    import atexit
    import contextlib
    import os
    import signal
    import threading

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What Python does at its end, but for taking itself apart: threads of Arrow that still read ahead abort then.
    if code != 130:
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
