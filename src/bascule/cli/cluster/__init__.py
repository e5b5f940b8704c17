"""Commands that show a cluster, or change where its replicas and leaders are."""
