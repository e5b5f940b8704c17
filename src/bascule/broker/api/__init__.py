"""The gRPC API, one file for each family of calls; kernels carry published and delivered messages. See docs/internals/api.md."""
