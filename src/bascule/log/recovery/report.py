"""What an open found and repaired, for the server's log and for replication."""

from __future__ import annotations

from dataclasses import dataclass, field

from bascule.log.segments.damage import Damage


@dataclass(slots=True)
class RecoveryReport:
    """The findings and repairs of an open. Empty after a clean stop."""

    verified_bytes: int = 0
    leftover_bytes: int = 0
    """Removed after the end of sealed segments: refused appends had left them. No record is lost with them."""
    cut_bytes: int = 0
    cut_from_offset: int | None = None
    cut_reason: str | None = None
    removed_files: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)
    """Offset ranges `[first, end)` that no segment holds."""

    @property
    def is_clean(self) -> bool:
        removed = self.leftover_bytes or self.cut_bytes or self.removed_files
        return not (removed or self.rebuilt or self.damage or self.missing)

    def lines(self) -> list[str]:
        """Return the report as sentences for the server's log."""
        said = []
        if self.leftover_bytes:
            said.append(f"removed {self.leftover_bytes} bytes that refused appends had left after sealed segments")
        if self.cut_bytes or self.removed_files:
            said.append(
                f"removed {self.cut_bytes} bytes that were not synced, from offset {self.cut_from_offset}: {self.cut_reason}"
            )
        said += [f"rebuilt {name}" for name in self.rebuilt]
        said += [damage.describe() for damage in self.damage]
        said += [f"offsets {first} to {end - 1} are missing: no segment holds them" for first, end in self.missing]
        return said
