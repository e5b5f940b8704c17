"""gRPC over asyncio: server, channel, health, reflection."""
