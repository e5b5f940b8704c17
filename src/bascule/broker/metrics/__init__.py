"""What a broker tells Prometheus: collected when it is asked, from what the broker counts anyway."""
