"""Files, buckets and paths, and bounded reads of the formats in them that others have written."""
