"""Processes, threads, files, clocks, TLS: the machine that a process runs on."""
