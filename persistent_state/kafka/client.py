"""Share what all Kafka clients need: the library, its options, and errors that show no secret."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import methodcaller
from typing import Any

import cloudpickle

from persistent_state.errors import (
    InvalidInputError,
    StateError,
    StoreUnavailableError,
    missing_package,
    raised,
    translating,
)
from persistent_state.redact import text_without_secrets

TOKEN = "oauth_cb"
"""The option that holds a function which returns a token of OAuth."""

_NO_TOKEN = ("OAuth token not set", "Failed to acquire SASL OAUTHBEARER token")
"""The beginnings of the client's errors if it has no token. The first is confluent_kafka's, which waits ten seconds for one."""

_headers: Callable[[Any], list[tuple[str, bytes | None]] | None] = methodcaller("headers")
"""Returns the headers of a record."""

_UNREADABLE: Any = ["not UTF-8"]
"""Stands for headers that the client can't return."""

_STATISTICS_MILLIS = 500


class TokenFunction:
    """A user's `oauth_cb`, with the reason why its last call gave no token. The client's own errors don't have the reason."""

    def __init__(self, function: Callable[[str], Any]) -> None:
        self.function = function
        self.failure = ""

    def __call__(self, config: str) -> Any:
        self.failure = "oauth_cb has not returned"
        try:
            token = self.function(config)
        except Exception as error:
            self.failure = f"oauth_cb raised {raised(error)}"
            raise
        self.failure = ""
        return token


class Moves:
    """The time at which clients last came further in what they fetch, also through records that they don't hand out.

    Those of aborted transactions are fetched and left out. Times are those of `time.monotonic`.
    """

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._offsets: dict[tuple[str, str], int] = {}

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a client of which the moves are noted. A `stats_cb` of the user's is called, too."""
        note = partial(self._note, given.get("stats_cb") or _pass_over)
        return {**given, "statistics.interval.ms": _STATISTICS_MILLIS, "stats_cb": note}

    def _note(self, hand_on: Callable[[str], Any], statistics: str) -> None:
        hand_on(statistics)
        for topic, known in json.loads(statistics)["topics"].items():
            for number, partition in known["partitions"].items():
                # A new client begins where the last one did, which is no move.
                if partition["next_offset"] > self._offsets.get((topic, number), -1):
                    self._offsets[topic, number] = partition["next_offset"]
                    self.last = time.monotonic()


def _pass_over(statistics: str) -> None:
    pass


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


def check_sent(what: str, function: object) -> None:
    """Refuse a function that can't be sent to workers.

    Raises:
        InvalidInputError: It can't be pickled.
    """
    try:
        cloudpickle.dumps(function)
    except Exception as error:
        raise InvalidInputError(
            f"{what} can't be sent to workers: {str(error).rstrip('.')}. Make what the function uses where it uses it."
        ) from None


def checked_options(what: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a user's options of clients, with an `oauth_cb` of which errors name the failure.

    Args:
        what: The source or sink, for messages.
        given: The options.

    Raises:
        InvalidInputError: A function of them can't be sent to workers.
    """
    options = dict(given or {})
    for name, value in options.items():
        if callable(value):
            check_sent(f"option={name!r} of {what}", value)
    if callable(function := options.get(TOKEN)):
        options[TOKEN] = TokenFunction(function)
    return options


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
        reason = text_without_secrets(reason_of(code, options), dict(options))
        if is_refusal(code, options):
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


def headers_of(message: Any) -> list[tuple[str, bytes | None]] | None:
    """Return the headers of a record; None if the name of one is not UTF-8, which clients of other languages write."""
    try:
        # The client sets an error and returns all the same. Python looks for that here, and not where a loop calls the method.
        headers = _headers(message)
    except (SystemError, UnicodeDecodeError):
        # Asked again, the client would return such a name as a null pointer, and a look at that ends the process.
        message.set_headers(_UNREADABLE)
        return None
    return None if headers is _UNREADABLE else headers or []


def answer(future: Future[Any], seconds: float) -> Any:
    """Return an admin client's answer, or give up after `seconds`, which the client itself may not do.

    Raises:
        KafkaException: The answer is an error, or does not come.
    """
    try:
        return future.result(seconds)
    except concurrent.futures.TimeoutError:  # not the built-in one on Python 3.10
        kafka = library()
        raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TIMED_OUT)) from None


def reason_of(error: Any, options: Mapping[str, Any]) -> str:
    """Return what a KafkaError says, and why `oauth_cb` gave no token if that is the cause."""
    text: str = error.str() or error.name()
    return f"{text}: {_failure(options)}" if _failure(options) and _lacks_token(error, options) else text


def _failure(options: Mapping[str, Any]) -> str:
    """Return why the last call of `oauth_cb` gave no token; "" if it gave one, or if there is no `oauth_cb`."""
    return str(getattr(options.get(TOKEN), "failure", ""))


def _lacks_token(error: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a client has no token, or an old one as it got no new one."""
    codes = library().KafkaError
    is_of_login = error.code() in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED)
    return is_of_login and bool((error.str() or "").startswith(_NO_TOKEN) or _failure(options))


def is_refusal(error: Any, options: Mapping[str, Any]) -> bool:
    """Return whether asking again after this KafkaError is useless, to a client of these options.

    It is not useless if the client lacks a token: who gives tokens may be away for a moment.
    """
    codes = library().KafkaError
    return not _lacks_token(error, options) and (
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
