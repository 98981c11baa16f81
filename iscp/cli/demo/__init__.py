"""`iscp demo`: the flights of New York in 2013, replayed day by day, and what is derived from them checked."""
