"""The routes of the server: a new API is a router file and a line here."""

from fastapi import APIRouter

from minivllm.entrypoints.admin import health, metrics, requests, tokenize, version
from minivllm.entrypoints.anthropic import routes as anthropic_routes
from minivllm.entrypoints.batches import routes as batch_routes
from minivllm.entrypoints.llamacpp import routes as llamacpp_routes
from minivllm.entrypoints.openai import chat_routes, completion_routes, models_routes
from minivllm.entrypoints.pooling import routes as pooling_routes
from minivllm.entrypoints.responses import routes as responses_routes

ROUTERS: list[APIRouter] = [
    chat_routes.router,
    completion_routes.router,
    responses_routes.router,
    models_routes.router,
    anthropic_routes.router,
    llamacpp_routes.router,
    batch_routes.upload_router,
    batch_routes.router,
    pooling_routes.router,
    tokenize.router,
    health.router,
    requests.router,
    version.router,
    metrics.router,
]
