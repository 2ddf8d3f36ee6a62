"""The audit: Spark over the lake. The only package that imports pyspark."""
