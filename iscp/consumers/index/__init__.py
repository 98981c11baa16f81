"""Full-text, vector and search indexes as kinds of jobs."""
