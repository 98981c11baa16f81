"""The composition root: the one place that knows which adapter stands behind which port."""
