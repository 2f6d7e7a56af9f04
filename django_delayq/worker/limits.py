"""Which topics have limits: those of the settings, and those of the tasks that are declared."""

from __future__ import annotations

from ..core.conf import Settings, TopicSettings
from ..core.limits import Rule, TopicLimits
from ..tasks import registry

#: For a topic that has no limit any more, and messages that a limit holds back.
NO_LIMITS = TopicLimits()


def limits_by_topic(settings: Settings) -> dict[str, TopicLimits]:
    """The limits of each topic that has any. Claims of all others know nothing of limits."""
    rules: dict[str, dict[bytes, Rule]] = {}
    for task in registry.by_name.values():
        options = task.definition.options
        if options.rule != Rule():
            rules.setdefault(options.topic, {})[task.definition.code] = options.rule
    found: dict[str, TopicLimits] = {}
    for name in {*rules, *settings.topics}:
        topic = settings.topics.get(name, TopicSettings())
        limits = TopicLimits(topic.rule, topic.release_rate, rules.get(name, {}))
        if limits != NO_LIMITS:
            found[name] = limits
    return found
