"""Share what all Kafka clients need: the library, its options, and errors that show no secret."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from persistent_state.errors import InvalidInputError, StateError, StoreUnavailableError, missing_package, translating
from persistent_state.redact import text_without_secrets


def library() -> Any:
    """Return the module confluent_kafka, with its admin client.

    Raises:
        InvalidInputError: The package is not installed.
    """
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise missing_package("confluent_kafka", "Kafka", "kafka") from error
    return confluent_kafka


def client_options(bootstrap_servers: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a client, as librdkafka names them."""
    # Errors are raised. The client's log would print them a second time, on standard error.
    return {"log_level": 2, **given, "bootstrap.servers": bootstrap_servers}


def asking(what: str, options: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Raise the errors of Kafka's client that come out of the block as errors of this package.

    Args:
        what: The source or sink, for the message.
        options: The client's options, which no message shows.

    Returns:
        A context manager. It raises a `StoreUnavailableError` if the broker does not answer now, an `InvalidInputError` if the
        broker refuses and always would.
    """

    def as_ours(error: Exception) -> StateError:
        code = error.args[0]
        reason = text_without_secrets(code.str() or code.name(), dict(options))
        if is_refusal(code):
            return InvalidInputError(f"{what}: {reason}. Correct the options, or what the user may do there.")
        return StoreUnavailableError(f"{what}: {reason}. Check the brokers, then try again.")

    return translating(library().KafkaException, as_ours)


@contextmanager
def needing(what: str, operation: str, resource: str) -> Iterator[None]:
    """Name the operation and the resource if the brokers do not permit what a client asks in here.

    Raises:
        InvalidInputError: The user of the client lacks the permission.
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
    """Return an admin client's answer, or give up after so many seconds, which the client itself may not do.

    Raises:
        KafkaException: The answer is an error, or there is none.
    """
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError:  # not the built-in one on Python 3.10
        kafka = library()
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT)) from None


def is_refusal(error: Any) -> bool:
    """Return whether asking again after this KafkaError is useless."""
    codes = library().KafkaError
    return (
        error.code()
        in {
            codes._AUTHENTICATION,
            codes._INVALID_ARG,
            codes._SSL,
            codes.INVALID_RECORD,
            codes.INVALID_TIMESTAMP,
            codes.INVALID_TRANSACTION_TIMEOUT,
            codes.MSG_SIZE_TOO_LARGE,
            codes.SASL_AUTHENTICATION_FAILED,
            codes.UNSUPPORTED_SASL_MECHANISM,
        }
        | _forbidden()
    )


def _forbidden() -> set[int]:
    codes = library().KafkaError
    return {
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
