"""Planted bugs, each of which a named test must kill: `make mutants`.

A mutant is a replacement in one source file. It is made in a copy of `src/`, the named test is run against the copy, and has to
fail. What survives is a test that proves less than its name says. With `--simulate N` the simulators alone hunt each mutant, over N
seeds, to see what random search finds without being told where to look.
"""

from __future__ import annotations

from tools.mutants import hand_over, raft, replication, retention
from tools.mutants.mutant import ROOT, Mutant, applied, by_test, run

__all__ = ["MUTANTS", "ROOT", "Mutant", "applied", "by_test", "run"]

MUTANTS = (*raft.MUTANTS, *replication.MUTANTS, *hand_over.MUTANTS, *retention.MUTANTS)
