"""The client. Its face is `bascule.connect`; see docs/guides/quickstart.md."""
