"""Planted bugs, each of which a named test must kill: `make mutants`.

A mutant is a replacement in one source file. It is made in a private copy of the tree, the named test is run in the copy, and has to
fail. A survivor is a test that proves less than its name says. A kernel with a bug is compiled again, in the copy. With `--simulate N`
the simulators alone hunt each mutant, over N seeds, to see what random search finds without a test that names the bug.
"""

from __future__ import annotations

from tools.mutants import (
    cursors,
    groups,
    hand_over,
    metadata,
    raft,
    raft_log,
    replication,
    retention,
    subscriptions,
)
from tools.mutants.client import consume, publish
from tools.mutants.kernels import ingest, ingest_memory, records
from tools.mutants.lake import archives, coverage, files, pipelines
from tools.mutants.mutant import ROOT, Mutant, applied
from tools.mutants.spark import history, plan, sink

__all__ = ["MUTANTS", "ROOT", "Mutant", "applied"]

MUTANTS = (
    *raft.MUTANTS,
    *raft_log.MUTANTS,
    *replication.MUTANTS,
    *metadata.MUTANTS,
    *hand_over.MUTANTS,
    *retention.MUTANTS,
    *subscriptions.MUTANTS,
    *cursors.MUTANTS,
    *groups.MUTANTS,
    *consume.MUTANTS,
    *publish.MUTANTS,
    *ingest_memory.MUTANTS,
    *ingest.MUTANTS,
    *records.MUTANTS,
    *archives.MUTANTS,
    *coverage.MUTANTS,
    *files.MUTANTS,
    *pipelines.MUTANTS,
    *plan.MUTANTS,
    *history.MUTANTS,
    *sink.MUTANTS,
)
