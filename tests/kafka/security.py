"""A broker that wants TLS and a password, with certificates of its own making."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from examples.broker import Broker, free_ports
from tests.processes import start_guarded

USER = "shop"
GUEST = "guest"
"""Another user with the same password, who may do nothing but what it is allowed."""


def secured_broker(folder: Path, password: str) -> Broker:
    """A broker whose third port takes SASL over TLS only, and the first what the tests themselves write and read."""
    folder.mkdir()
    certify(folder)
    ports = free_ports(3)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    names = [f"PLAINTEXT://127.0.0.1:{ports[0]}", f"SASL_SSL://127.0.0.1:{ports[2]}"]
    settings = {
        "listeners": ",".join([*names, f"CONTROLLER://127.0.0.1:{ports[1]}"]),
        "advertised.listeners": ",".join(names),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'{login} required user_{USER}="{password}" user_{GUEST}="{password}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER}",
    }
    return Broker(folder, settings, start_guarded, ports)


def allow(broker: Broker, operation: str, resource: str, name: str) -> None:
    """Allow the guest an operation on a topic or a group of this name, or on all transactional ids that begin with it."""
    pattern = ResourcePatternType.PREFIXED if resource == "transactional.id" else ResourcePatternType.LITERAL
    kind = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional.id": ResourceType.TRANSACTIONAL_ID}
    permission = AclPermissionType.ALLOW
    binding = AclBinding(kind[resource], name, pattern, f"User:{GUEST}", "*", AclOperation[operation], permission)
    admin = broker.admin()
    for done in admin.create_acls([binding]).values():
        done.result()


def client_options(folder: Path, password: str, user: str = USER) -> dict[str, Any]:
    """What a client of this broker has to say."""
    return {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        "ssl.ca.location": str(folder / "ca.pem"),
    }


def certify(folder: Path) -> None:
    """Make ca.pem, and server.pem with its key, for 127.0.0.1."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca_name, name = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)]) for one in ("ca", "127.0.0.1"))
    now = datetime.datetime.now(datetime.timezone.utc)

    def built(subject: x509.Name, public: Any, is_ca: bool) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(ca_name).public_key(public)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=1))
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
        return builder.sign(ca_key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(built(ca_name, ca_key.public_key(), True).public_bytes(pem))
    own = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(own + built(name, key.public_key(), False).public_bytes(pem))
