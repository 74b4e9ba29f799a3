"""Hand-off of KV caches between engines. Part of `EngineConfig`, made of --kv-transfer-config by `config.resolve`."""

from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from msgspec import Meta

from minivllm.errors import ConfigError

TCP = "TcpConnector"
_Positive = Annotated[float, Meta(gt=0)]


class ConnectorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Those that vLLM's schema has no place for."""

    peers: tuple[str, ...] = ()  # host:port of the producers that may be asked: no request can name another address
    keep_seconds: _Positive = 60.0  # a producer keeps what nobody asked for
    timeout_seconds: _Positive = 10.0  # until a consumer computes the prompt itself


class KVTransferConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Names as in vLLM."""

    kv_connector: Literal["SharedMemoryConnector", "TcpConnector"]
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"]
    engine_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] = msgspec.field(default_factory=lambda: uuid4().hex)
    kv_ip: str = "127.0.0.1"  # where a producer listens, and what consumers are told
    kv_port: Annotated[int, Meta(ge=1, le=65535)] = 14579  # of the first core
    kv_buffer_size: _Positive = 1e9  # bytes that a producer keeps at most, and that one fetch may have
    kv_connector_extra_config: ConnectorOptions = ConnectorOptions()

    @property
    def produces(self) -> bool:
        return self.kv_role != "kv_consumer"

    @property
    def consumes(self) -> bool:
        return self.kv_role != "kv_producer"


def read_kv_transfer(given: dict[str, Any]) -> KVTransferConfig:
    """ConfigError names what is wrong with the object."""
    try:
        config = msgspec.convert(given, KVTransferConfig)
    except msgspec.ValidationError as e:
        raise ConfigError(f"--kv-transfer-config: {e}.", param="kv_transfer_config") from e
    if config.kv_connector == TCP and config.consumes and not config.kv_connector_extra_config.peers:
        raise ConfigError(
            "--kv-transfer-config: a consumer by TcpConnector asks only the producers that you name, as "
            '"kv_connector_extra_config": {"peers": ["host:port"]}.',
            param="kv_transfer_config",
        )
    return config
