"""The audit: Spark over the lake. The only room that imports pyspark."""
