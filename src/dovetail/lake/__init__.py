"""Sealed journals as partitioned Parquet files, with the manifests that commit to them."""
