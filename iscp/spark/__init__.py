"""Sessions of Spark, the JVM that they run in, and Spark's errors."""
