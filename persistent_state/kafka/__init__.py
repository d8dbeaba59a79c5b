"""Kafka topics as sources and as sinks. Here are the decoders of records' values."""

from persistent_state.kafka.decoders import Avro, Decoded, Decoder, Json, Raw

__all__ = ["Avro", "Decoded", "Decoder", "Json", "Raw"]
