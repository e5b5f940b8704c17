"""HTTP/2 connections: frames, flow control, sending."""
