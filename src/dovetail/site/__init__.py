"""What a site needs to run: configuration, checks, supervision of its server processes."""
