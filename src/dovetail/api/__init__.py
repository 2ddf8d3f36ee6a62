"""The public Python API, behind the lazy names of `dovetail`. Its modules are private; import from `dovetail`."""
