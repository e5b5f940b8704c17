"""Commands that look at a cluster or change where its replicas and leaders are."""
