"""The composition root: the one place that knows which adapter is behind which port.

Nothing is imported here, so that who reads settings alone loads no adapter.
"""
