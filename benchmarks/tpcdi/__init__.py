"""A warehouse in the shape of TPC-DI, kept by iscp or recomputed: `python -m benchmarks.tpcdi [--json] [--trades N]`.

49 views in three layers (bronze, silver, gold) read 17 sources of a brokerage. After the first load two batches change
nine of the sources: new and changed customers and accounts, trades that begin and end, a day of the market, cash,
holdings, watches, and prospects that come, go and change; `--share` of the trades are new in each. By turns
`iscp.local` runs the file of all views, Spark recomputes and overwrites each view below a changed source, and so do
DuckDB and deltalake. Each is a process that stays, and all take one view after the other. After each load every view of
iscp has to have the rows of Spark's, and DuckDB's as many; otherwise the run fails.

`batch2_cpu_ratio_spark` is iscp's processor time over that of Spark, with the JVMs of both; `batch2_clock_ratio_spark`
and `batch2_ratio_duckdb` compare the clock. `views_by_changes` are the views of both batches that went by changes, of
`views_refreshed`; `slower_views` those that took 1.2 times as long as Spark's recomputation of the same view, or more.
"""
