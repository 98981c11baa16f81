"""Records: specs, statuses, watermarks, progress, requests, errors and settings, without any library, clock or I/O."""
