"""Begins and ends alerts, and delivers them. It runs in each process that archives.

What has begun and who was told of it is in SQL. Each change is an UPDATE that only one process can
make, so nothing is told twice, and nothing is forgotten when a process ends. Only a process that
ends after it has told somebody, and before it could note that, makes another one tell it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone, translation

from ...core.alert_rules import AlertRule
from ...core.conf import get_settings
from ...core.database import reached
from ...core.exceptions import StoreError
from ...core.service import Service
from ...core.times import utc
from ...models import Alert, AlertDelivery
from ...store.store import RedisStore
from ..attention.concerns import broken
from ..attention.conditions import is_known, limit_in_words
from ..attention.situation import Situation, read_situation
from .delivery import AlertNotice, deliver

logger = logging.getLogger("delayq.worker")

#: Seconds between two looks, and between two looks for deliveries that are due.
INTERVAL, POLL = 15.0, 5.0
#: Who delivers has so long for it. After that another process tries.
CLAIM = timedelta(seconds=60)
#: The wait after a failed delivery doubles from the first to the longest (seconds). What could not
#: be delivered for a day is given up.
FIRST_WAIT, LONGEST_WAIT = 10.0, 1800.0
GIVE_UP_AFTER = timedelta(days=1)
#: Deliveries of one run.
BATCH = 20
#: Ended alerts, and those that no rule knows any more, are kept so long.
KEPT = timedelta(days=30)
FORGOTTEN_AFTER = timedelta(days=1)


class Alerter(Service):
    """Looks at the figures every 15 seconds: one of all processes does it."""

    name = "alerts"
    interval = POLL

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self.delivered = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Messages that were delivered here."""
        return {"delivered": self.delivered}

    def run_once(self) -> float:
        """Look, unless another process has; then deliver what is due. Raises DatabaseUnavailable:
        the service tries again."""
        with reached():
            if self._is_my_turn():
                rules = get_settings().alerts
                situation = read_situation(self._store, {rule.kind for rule in rules})
                note(rules, situation, timezone.now())
            self._deliver()
        return self.interval

    def _is_my_turn(self) -> bool:
        """While Redis is away, everybody looks: the database sees to it that one begins the
        alert."""
        try:
            return self._store.workers.acquire_lock(self.name, int(INTERVAL * 1000) - 500)
        except StoreError:
            return True

    def _deliver(self) -> None:
        now = timezone.now()
        due = AlertDelivery.objects.filter(next_try_at__lte=now).select_related("alert")
        for delivery in due.order_by("pk")[:BATCH]:
            if self.stopping:
                return
            if not _claim(delivery):
                continue
            try:
                deliver(delivery.target, _notice(delivery))
            except Exception as error:
                _failed(delivery, error)
            else:
                AlertDelivery.objects.filter(pk=delivery.pk).update(
                    delivered_at=timezone.now(), next_try_at=None, error=""
                )
                self.delivered += 1


# What has begun, and what is over


class Breach(NamedTuple):
    """A rule that holds, in one topic or in all."""

    rule: AlertRule
    topic: str
    """Empty for what is not about one topic."""
    value: float
    words: str


def breaches(rules: Sequence[AlertRule], situation: Situation) -> list[Breach]:
    """All that is wrong by the rules."""
    found = []
    with translation.override(None):  # those who are told may read any language: English
        for rule in rules:
            limit = limit_in_words(rule.kind, rule.limit)
            suffix = f" (limit {limit})" if limit else ""
            found += [
                Breach(rule, measure.topic, measure.value, measure.words + suffix)
                for measure in broken(rule, situation)
            ]
    return found


def note(rules: Sequence[AlertRule], situation: Situation, now: datetime) -> None:
    """Compare what is wrong now with the open alerts; begin and end alerts. Several processes may
    do it at once. Raises django.db.Error."""
    found = {f"{breach.rule.name}|{breach.topic}": breach for breach in breaches(rules, situation)}
    known = {rule.name: rule for rule in rules if is_known(rule.kind, situation)}
    open_alerts = {
        alert.open_key: alert
        for alert in Alert.objects.filter(open_key__isnull=False, rule__in=list(known))
    }
    for key, breach in found.items():
        alert = open_alerts.get(key) or _open(key, breach, now)
        if alert is not None:
            _note_breach(alert, breach, now)
    for key, alert in open_alerts.items():
        if key not in found:
            _note_calm(alert, known[alert.rule], now)
    Alert.objects.filter(ended_at__lt=now - KEPT).delete()
    Alert.objects.filter(open_key__isnull=False, seen_at__lt=now - FORGOTTEN_AFTER).delete()


def _open(key: str, breach: Breach, now: datetime) -> Alert | None:
    """A new row, or None when another process has just made it."""
    try:
        with transaction.atomic(using=get_settings().database):
            alert: Alert = Alert.objects.create(
                rule=breach.rule.name,
                kind=breach.rule.kind,
                topic=breach.topic,
                open_key=key,
                value=breach.value,
                words=breach.words,
                changed_at=now,
                seen_at=now,
            )
    except IntegrityError:
        return None
    return alert


def _note_breach(alert: Alert, breach: Breach, now: datetime) -> None:
    row = Alert.objects.filter(pk=alert.pk, open_key__isnull=False)
    if not alert.holds:
        row.filter(holds=False).update(holds=True, changed_at=now)
        alert.changed_at = now
    is_new = alert.began_at is None
    words = {"words": breach.words} if is_new or breach.value >= alert.value else {}
    row.update(seen_at=now, value=Greatest(F("value"), breach.value), **words)
    if is_new and now - alert.changed_at >= timedelta(seconds=breach.rule.after):
        with transaction.atomic(using=get_settings().database):
            if row.filter(began_at__isnull=True).update(began_at=now):
                _add_deliveries(alert, "begun", breach.rule.to, now)
                logger.warning("alert %s: %s", alert, breach.words)


def _note_calm(alert: Alert, rule: AlertRule, now: datetime) -> None:
    row = Alert.objects.filter(pk=alert.pk, open_key__isnull=False)
    if alert.began_at is None:  # it did not last long enough for anybody to be told
        row.filter(began_at__isnull=True).delete()
        return
    if alert.holds:
        row.filter(holds=True).update(holds=False, changed_at=now)
        alert.changed_at = now
    row.update(seen_at=now)
    if now - alert.changed_at >= timedelta(seconds=rule.after):
        with transaction.atomic(using=get_settings().database):
            if row.update(ended_at=now, open_key=None):
                _add_deliveries(alert, "ended", rule.to, now)
                logger.info("alert %s is over", alert)


def _add_deliveries(alert: Alert, event: str, targets: Iterable[str], now: datetime) -> None:
    AlertDelivery.objects.bulk_create(
        AlertDelivery(alert=alert, target=target, event=event, next_try_at=now)
        for target in targets
    )


# Deliveries


def _claim(delivery: AlertDelivery) -> bool:
    """Whether this process is to deliver it now: one of all that try, and a target hears of the
    end after the beginning."""
    before = AlertDelivery.objects.filter(
        alert=delivery.alert_id, target=delivery.target, event="begun", next_try_at__isnull=False
    )
    if delivery.event == "ended" and before.exists():
        return False
    row = AlertDelivery.objects.filter(pk=delivery.pk, next_try_at=delivery.next_try_at)
    return bool(row.update(next_try_at=timezone.now() + CLAIM, attempts=F("attempts") + 1))


def _notice(delivery: AlertDelivery) -> AlertNotice:
    alert = delivery.alert
    return AlertNotice(
        id=delivery.pk,
        event=delivery.event,
        rule=alert.rule,
        kind=alert.kind,
        topic=alert.topic,
        value=alert.value,
        words=alert.words,
        began_at=utc(alert.began_at or alert.changed_at),
        ended_at=utc(alert.ended_at) if alert.ended_at and delivery.event == "ended" else None,
    )


def _failed(delivery: AlertDelivery, error: Exception) -> None:
    alert = delivery.alert
    now = timezone.now()
    since = (alert.ended_at if delivery.event == "ended" else alert.began_at) or now
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(delivery.attempts, 20))
    again = None if now - since > GIVE_UP_AFTER else now + timedelta(seconds=wait)
    reason = f"{type(error).__name__}: {error}"[:1000]
    AlertDelivery.objects.filter(pk=delivery.pk).update(next_try_at=again, error=reason)
    what = "it is tried again" if again else "given up"
    logger.warning("alert %s was not delivered to its target; %s: %s", alert, what, reason)
