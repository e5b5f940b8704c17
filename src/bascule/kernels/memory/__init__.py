"""Memory accounts of connections and servers."""
