"""Check the topics that a Kafka sink needs, and create the topic of its bookkeeping."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from persistent_state.errors import InvalidInputError
from persistent_state.kafka.client import answer, client_options, is_refusal, library, needing


def prepare(
    name: str, topic: str, bookkeeping: str, bootstrap_servers: str, options: Mapping[str, Any], patience: float
) -> None:
    """Check that the topics of the sink `name` exist, and create the topic of its bookkeeping if it is missing.

    While brokers may be in a failover, ask again, for `patience` seconds.

    Raises:
        InvalidInputError: The topic of the values is missing, or the topic of the bookkeeping might lose records.
        KafkaException: The brokers refuse, or do not answer.
    """
    deadline = time.monotonic() + patience
    while True:
        admin = library().admin.AdminClient(client_options(bootstrap_servers, options))
        try:
            if check(name, admin, topic, bookkeeping, bootstrap_servers, patience):
                return
            create(name, admin, bookkeeping, patience)
            if check(name, admin, topic, bookkeeping, bootstrap_servers, patience):
                return
            # A broker may not know yet what another one has made.
            absent = library().KafkaError.UNKNOWN_TOPIC_OR_PART
            why = f"topic={bookkeeping!r} was created, and is not there yet"
            raise library().KafkaException(library().KafkaError(absent, why))
        except library().KafkaException as error:
            if is_refusal(error.args[0], options) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def check(name: str, admin: Any, topic: str, bookkeeping: str, bootstrap_servers: str, patience: float) -> bool:
    """Check the topics of the sink `name`, and return whether that of its bookkeeping is there.

    Raises:
        InvalidInputError: The topic of the values is missing, or the topic of the bookkeeping might lose records.
        KafkaException: The brokers refuse, or do not answer.
    """
    if not exists(name, admin, topic, patience):
        raise InvalidInputError(
            f"topic={topic!r} is not at bootstrap_servers={bootstrap_servers!r}; make it, or name another."
        )
    if not exists(name, admin, bookkeeping, patience):
        return False
    policy = cleanup_policy(name, admin, bookkeeping, patience)
    if policy != "compact":
        raise InvalidInputError(
            f"topic={bookkeeping!r} has cleanup.policy={policy}, and would lose the sink's records; set it to compact, or"
            " name another for bookkeeping."
        )
    return True


def exists(name: str, admin: Any, topic: str, patience: float) -> bool:
    """Return whether the topic is there."""
    kafka = library()
    try:
        answers = admin.describe_topics(kafka.TopicCollection([topic]), request_timeout=patience)
        with needing(name, "DESCRIBE", f"topic={topic!r}"):
            answer(answers[topic], 2 * patience)
    except kafka.KafkaException as error:
        if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise
    return True


def create(name: str, admin: Any, topic: str, patience: float) -> None:
    """Make a compacted topic of one partition, and wait until it is there."""
    kafka = library()
    # Each start reads all records that are not compacted yet, so keep segments small.
    config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 24)}
    new = kafka.admin.NewTopic(topic, 1, -1, config=config)
    answers = admin.create_topics([new], operation_timeout=patience, request_timeout=patience)
    try:
        with needing(name, "CREATE", f"topic={topic!r}"):
            answer(answers[topic], 2 * patience)
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    deadline = time.monotonic() + patience
    while not exists(name, admin, topic, patience) and time.monotonic() < deadline:
        time.sleep(0.05)


def cleanup_policy(name: str, admin: Any, topic: str, patience: float) -> str:
    """Return the topic's `cleanup.policy`."""
    kafka = library()
    resource = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, topic)
    answers = admin.describe_configs([resource], request_timeout=patience)
    with needing(name, "DESCRIBE_CONFIGS", f"topic={topic!r}"):
        config = answer(answers[resource], 2 * patience)
    policy: str = config["cleanup.policy"].value
    return policy
