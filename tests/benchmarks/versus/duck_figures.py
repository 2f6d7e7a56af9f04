"""What DuckDB computes of rows, as SQL. Plain Python: it also runs where our package is not
installed."""

from __future__ import annotations

FIGURES = """
    count(*) AS messages, sum(attempts) AS attempts,
    count(*) FILTER (state = 'acked') AS acked, count(*) FILTER (state = 'dead') AS dead,
    count(*) FILTER (state = 'cancelled') AS cancelled, count(*) FILTER (state = 'expired') AS expired,
    count(*) FILTER (attempts > 1) AS retried, sum(lateness_ms) AS lateness_sum, max(lateness_ms) AS lateness_max,
    sum(run_ms) AS run_sum, max(run_ms) AS run_max
"""

#: Our histogram, as histogram.bucket() and histogram.microseconds() have it.
MACROS = (
    "CREATE MACRO wide(n) AS (floor(log2(greatest(n, 16)))::INT - 4)",
    "CREATE MACRO placed(n) AS (CASE WHEN n < 16 THEN greatest(n, 0) "
    "ELSE 16 * wide(n) + (n >> wide(n)) END)",
    "CREATE MACRO bucket(ms) AS (placed(floor(ms * 1000 + 0.5)::BIGINT))",
)
