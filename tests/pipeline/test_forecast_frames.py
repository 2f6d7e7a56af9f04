"""What a forecast is computed with."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.testing import assertDataFrameEqual

from django_delayq.pipeline.forecast import forecast_frames

NOW = datetime(2026, 11, 20, 9, 30, 30, tzinfo=timezone.utc)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DUE = "message_id string, topic string, partition int, due_at timestamp"
MINUTES = "topic string, at timestamp, messages bigint, overdue bigint"
SPANS = "unit string, at timestamp, topic string, messages bigint, overdue bigint"


def at(text: str) -> datetime:
    """A time of the 20th, or of another day: 21 09:00."""
    day, _, clock = text.rpartition(" ")
    return datetime.fromisoformat(f"2026-11-{day or 20}T{clock}:00+00:00")


def due(spark: Any, *rows: tuple[str, datetime | None]) -> Any:
    return spark.createDataFrame(
        [(str(n), topic, 0, when) for n, (topic, when) in enumerate(rows)], DUE
    )


def test_minutes_are_counted_by_topic_and_what_is_overdue_is_in_that_of_now(spark: Any):
    early = datetime(2026, 11, 19, tzinfo=timezone.utc)
    frame = due(
        spark,
        ("a", early),
        ("a", NOW),
        ("a", NOW + MINUTE / 3),
        ("b", NOW + MINUTE / 3),
        ("a", NOW + MINUTE),
    )
    expected = [("a", at("09:30"), 3, 2), ("b", at("09:30"), 1, 0), ("a", at("09:31"), 1, 0)]
    assertDataFrameEqual(
        forecast_frames.due_minutes(frame, NOW), spark.createDataFrame(expected, MINUTES)
    )


def test_a_due_time_that_is_missing_is_overdue(spark: Any):
    expected = [("a", at("09:30"), 1, 1)]
    found = forecast_frames.due_minutes(due(spark, ("a", None)), NOW)
    assertDataFrameEqual(found, spark.createDataFrame(expected, MINUTES))


def test_a_message_that_was_seen_twice_counts_once_when_it_is_due_first(spark: Any):
    rows = [
        ("1", "a", 0, NOW + HOUR),
        ("1", "a", 1, NOW + MINUTE),
        ("1", "a", 0, NOW + HOUR),
        ("1", "b", 0, NOW + HOUR),
    ]
    found = forecast_frames.due_minutes(spark.createDataFrame(rows, DUE), NOW)
    expected = [("a", at("09:31"), 1, 0), ("b", at("10:30"), 1, 0)]
    assertDataFrameEqual(found, spark.createDataFrame(expected, MINUTES))


def test_nothing_makes_no_spans(spark: Any):
    minutes = forecast_frames.due_minutes(due(spark), NOW)
    assertDataFrameEqual(minutes, spark.createDataFrame([], MINUTES))
    assertDataFrameEqual(forecast_frames.spans(minutes, NOW), spark.createDataFrame([], SPANS))
    assert forecast_frames.highest(minutes).collect() == []


def test_minutes_reach_a_day_hours_two_weeks_and_days_to_the_end(spark: Any):
    minutes = spark.createDataFrame(
        [
            ("a", at("09:30"), 5, 3),
            ("a", at("09:59"), 1, 0),
            ("b", at("21 09:29"), 2, 0),
            ("b", at("21 09:30"), 4, 0),
            ("b", datetime(2026, 12, 4, 8, 59, tzinfo=timezone.utc), 8, 0),
            ("b", datetime(2026, 12, 4, 9, 0, tzinfo=timezone.utc), 16, 0),
            ("b", datetime(2030, 1, 1, 23, 59, tzinfo=timezone.utc), 32, 0),
        ],
        MINUTES,
    )
    december = datetime(2026, 12, 4, tzinfo=timezone.utc)
    expected = [
        ("minute", at("09:30"), "a", 5, 3),
        ("minute", at("09:59"), "a", 1, 0),
        ("minute", at("21 09:29"), "b", 2, 0),
        ("hour", at("09:00"), "a", 6, 3),
        ("hour", at("21 09:00"), "b", 6, 0),
        ("hour", december + 8 * HOUR, "b", 8, 0),
        ("day", at("00:00"), "a", 6, 3),
        ("day", at("21 00:00"), "b", 6, 0),
        ("day", december, "b", 24, 0),
        ("day", datetime(2030, 1, 1, tzinfo=timezone.utc), "b", 32, 0),
    ]
    assertDataFrameEqual(
        forecast_frames.spans(minutes, NOW), spark.createDataFrame(expected, SPANS)
    )


def test_rows_of_one_minute_from_two_sources_are_one_span(spark: Any):
    minutes = spark.createDataFrame([("a", at("09:30"), 5, 3), ("a", at("09:30"), 2, 1)], MINUTES)
    expected = [("minute", at("09:30")), ("hour", at("09:00")), ("day", at("00:00"))]
    rows = [(unit, when, "a", 7, 4) for unit, when in expected]
    assertDataFrameEqual(forecast_frames.spans(minutes, NOW), spark.createDataFrame(rows, SPANS))


def test_the_highest_minute_is_of_all_topics_and_of_what_is_to_come(spark: Any):
    minutes = spark.createDataFrame(
        [
            ("a", at("09:30"), 900, 899),
            ("a", at("10:00"), 3, 0),
            ("b", at("10:00"), 4, 0),
            ("a", at("11:00"), 6, 0),
            ("a", at("12:00"), 7, 0),
        ],
        MINUTES,
    )
    expected = spark.createDataFrame([(at("10:00"), 7)], "at timestamp, messages bigint")
    assertDataFrameEqual(forecast_frames.highest(minutes), expected)
    overdue = spark.createDataFrame([("a", at("09:30"), 5, 5)], MINUTES)
    assert forecast_frames.highest(overdue).collect() == []
