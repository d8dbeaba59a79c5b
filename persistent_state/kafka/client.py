"""What all clients of Kafka have in common: the library, its options, and errors that tell no secret."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.redact import without_secrets


def library() -> Any:
    """The module confluent_kafka, with its admin client.

    Raises:
        InvalidInputError: it is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise InvalidInputError(
            "package='confluent_kafka' is missing for Kafka; pip install 'persistent-state[kafka]'."
        ) from error
    return confluent_kafka


def client_options(bootstrap_servers: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a client, as librdkafka names them."""
    # What goes wrong is raised; its log would tell it once more, on standard error.
    return {"log_level": 2, **given, "bootstrap.servers": bootstrap_servers}


@contextmanager
def asking(what: str, options: Mapping[str, Any]) -> Iterator[None]:
    """What a client raises in here becomes an error of this package.

    Raises:
        StoreUnavailableError: the broker does not answer, or not now.
        InvalidInputError: it refuses, as it always will.
    """
    kafka = library()
    try:
        yield
    except kafka.KafkaException as error:
        code = error.args[0]
        told = without_secrets(Exception(code.str() or code.name()), dict(options)).removeprefix("Exception: ")
        # Not chained: the client's own error may show an option.
        if is_refusal(code):
            raise InvalidInputError(f"{what}: {told}. Mend the set-up or what the user may do there.") from None
        raise StoreUnavailableError(f"{what}: {told}. Mend it, then try again.") from None


@contextmanager
def needing(what: str, operation: str, resource: str) -> Iterator[None]:
    """Name the operation and the resource if the brokers do not permit what a client asks in here.

    Raises:
        InvalidInputError: the user of the client lacks the permission.
    """
    kafka = library()
    try:
        yield
    except kafka.KafkaException as error:
        if error.args[0].code() not in _forbidden():
            raise
        raise InvalidInputError(
            f"{what}: the user lacks {operation} on {resource}. Allow that; docs/kafka.md lists all that is needed."
        ) from None


def answer(future: Future[Any], seconds: float) -> Any:
    """What an admin client answers. It has been seen not to give up by itself, whatever it was told.

    Raises:
        KafkaException: what it answers, or that it does not.
    """
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError:  # on Python 3.10 another than the built-in
        kafka = library()
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT)) from None


def is_refusal(told: Any) -> bool:
    """Whether it is no use to ask again after this KafkaError."""
    error = library().KafkaError
    return (
        told.code()
        in {
            error._AUTHENTICATION,
            error._INVALID_ARG,
            error._SSL,
            error.INVALID_RECORD,
            error.INVALID_TIMESTAMP,
            error.INVALID_TRANSACTION_TIMEOUT,
            error.MSG_SIZE_TOO_LARGE,
            error.SASL_AUTHENTICATION_FAILED,
            error.UNSUPPORTED_SASL_MECHANISM,
        }
        | _forbidden()
    )


def _forbidden() -> set[int]:
    error = library().KafkaError
    return {
        error.CLUSTER_AUTHORIZATION_FAILED,
        error.GROUP_AUTHORIZATION_FAILED,
        error.TOPIC_AUTHORIZATION_FAILED,
        error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
