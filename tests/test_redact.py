"""Messages show what goes wrong, and never a secret."""

from __future__ import annotations

import re
import string
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state import FileSource, InvalidInputError
from persistent_state.redact import shown, without_secrets
from persistent_state.store.files import open_files

SECRETS = (
    st.text(string.ascii_letters + string.digits + "/+=-_.~ ", min_size=4).map(str.strip).filter(lambda s: len(s) >= 4)
)
NAMES = st.sampled_from(
    [
        "password",
        "secret",
        "key",
        "AWS_SECRET_ACCESS_KEY",
        "account_key",
        "sas_token",
        "sasl.password",
        "sasl.jaas.config",
        "ssl.key.pem",
        "connection_string",
        "credential",
        "aws_session_token",
        "authorization",
        "something_new",
    ]
)


def text_of(message: str, options: Any) -> str:
    return without_secrets(ValueError(message), options)


@given(NAMES, SECRETS, st.text(), st.text(), st.booleans(), st.booleans())
def test_a_secret_never_shows(
    name: str, secret: str, before: str, after: str, is_nested: bool, is_quoted: bool
) -> None:
    if name == "something_new":
        # Flags and numbers are none.
        secret += "-hidden"
    options = {"client_kwargs": {name: [secret]}} if is_nested else {name: secret, "anon": False}
    shown = text_of(f"{before} {quote(secret) if is_quoted else secret} {after}", options)
    assert " ".join(secret.split()) not in shown
    assert quote(secret) not in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security.protocol": "PLAINTEXT"}, "the broker does not take PLAINTEXT"),
        ({"sasl.mechanism": "PLAIN"}, "PLAIN is refused"),
        ({"use_ssl": "true", "retries": "100000"}, "true after 100000 tries"),
        ({"something": "true"}, "it is true"),
        (
            {"client_kwargs": {"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:9000"}},
            "no eu-west-1 there",
        ),
    ],
)
def test_what_is_no_secret_is_shown(options: Any, message: str) -> None:
    assert text_of(message, options) == f"ValueError: {message}"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("no http://ann:hunter2@host/x", "no http://***@host/x"),
        ("no http://ann:hun/ter2@host/x", "no http://***@host/x"),
        ("no http://token@host/x", "no http://***@host/x"),
        ("no https://host/x?sig=abc now", "no https://host/x?*** now"),
        ("no ann@example.com", "no ann@example.com"),
    ],
)
def test_user_info_and_queries_of_urls_are_hidden(message: str, text: str) -> None:
    assert text_of(message, {}) == f"ValueError: {text}"


@pytest.mark.parametrize(
    "message", ["AccountKey=c2VjcmV0", "c2VjcmV0 is wrong", "a=b;AccountKey=c2VjcmV0;x=https", "dev is not dev."]
)
def test_the_parts_of_a_connection_string_are_hidden(message: str) -> None:
    options = {"connection_string": "Protocol=https;AccountName=dev;AccountKey=c2VjcmV0"}
    assert "c2VjcmV0" not in text_of(message, options)


PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12).map("Pw#?/@:{}Zq9".format)
"""Passwords as people write them into urls, unquoted."""


@given(PASSWORDS, st.sampled_from(["sftp", "https", "postgresql+psycopg", "abfs", "zip://a/b.zip::sftp"]))
def test_no_part_of_a_password_in_a_url_shows(password: str, protocol: str) -> None:
    url = f"{protocol}://ann:{password}@host.example:80/x"
    for text in (shown(url), text_of(f"no {url} there", {}), repr(FileSource(url, timestamp="ts"))):
        assert not any(part in text for part in ("Pw", "Zq9", "ann")), text
        assert "host.example:80/x" in text


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("/a/b#c?d@e", "/a/b#c?d@e"),
        ("s3://bucket/x", "s3://bucket/x"),
        ("s3://bucket/x?sig=1#y", "s3://bucket/x"),
        ("sftp://token@host/x", "sftp://host/x"),
        ("sftp://to?k#en@host/x", "sftp://host/x"),
        ("https://host:80/x", "https://host:80/x"),
        ("k8s://https://ann:pw@host", "k8s://host"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("abfs://ann:pw@account/x", "abfs://account/x"),
    ],
)
def test_the_rest_of_a_url_is_shown(url: str, text: str) -> None:
    assert shown(url) == text


@pytest.mark.parametrize("url", ["s3://ann:pw@host/x", "s3://ann:p/w@host/x", "webhdfs://ann:p/w@host:9870/x"])
def test_a_store_takes_no_password_in_its_url(url: str) -> None:
    with pytest.raises(InvalidInputError, match="holds a password") as caught:
        open_files(url)
    assert not re.search("p/?w|ann", str(caught.value).replace("password", ""))
    assert open_files("webhdfs://host:9870/x@y").url == "webhdfs://host:9870/x@y"


def test_a_short_secret_is_hidden_as_a_word_and_not_within_others() -> None:
    assert text_of("password abc of abcdef", {"password": "abc"}) == "ValueError: password *** of abcdef"
    assert text_of("the key 1234 is wrong", {"key": 1234}) == "ValueError: the key *** is wrong"
