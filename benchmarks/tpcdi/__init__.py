"""A data warehouse in the shape of TPC-DI, 49 views in three layers, over three batches: see `__main__`."""
