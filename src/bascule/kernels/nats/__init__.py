"""The NATS protocol: scanning what arrives, writing what is published."""
