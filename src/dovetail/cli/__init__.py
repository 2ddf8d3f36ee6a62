"""The command line: one file per noun, each with an `app`; `main` loads only the one requested."""
