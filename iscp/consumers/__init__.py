"""The kinds of jobs: replicas, changefeeds, views, indexes, and kinds of other people's making."""
