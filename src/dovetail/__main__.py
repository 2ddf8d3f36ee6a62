"""`python -m dovetail` is the command line."""

import sys

from dovetail.cli.main import main

sys.exit(main())
