"""Options and the model's facts, without torch. Every process imports this, so the log level is applied here."""

from minivllm.config import env
from minivllm.config.engine_args import AsyncEngineArgs, EngineArgs
from minivllm.config.engine_config import EngineConfig
from minivllm.config.hf.parts import RopeSpec
from minivllm.config.model_spec import ModelSpec
from minivllm.utils import logging

logging.set_level(env.logging_level())

__all__ = ["AsyncEngineArgs", "EngineArgs", "EngineConfig", "ModelSpec", "RopeSpec"]
