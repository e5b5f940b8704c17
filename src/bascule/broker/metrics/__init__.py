"""The metrics of a broker for Prometheus, collected when they are scraped."""
