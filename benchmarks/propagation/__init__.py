"""How long a change takes until all that is derived from it is right, and at which cost, for several engines:
`python -m benchmarks.propagation [--json]`.

docs/propagation.md says what is compared, and how.
"""
