"""The command line: one file per noun, each with an `app`; `main` loads the one that is asked for."""
