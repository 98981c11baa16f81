"""The schedule of a node: which table is due, which jobs of it run, and the loop that runs them."""
