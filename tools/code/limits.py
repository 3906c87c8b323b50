"""What one program may use up. Knows no interpreter."""

from dataclasses import dataclass

__all__ = ["CodeLimits"]

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class CodeLimits:
    """What one program may use up.

    Args:
        cpu_s: seconds that it may compute; waiting for tools does not count.
        wall_s: seconds that it may take in all, before it is set aside to go on later.
        memory_mb: memory of its values.
        calls: tool calls, failed ones included.
        printed_bytes: how much of what it prints is kept.
        value_bytes: the largest value that it may give to a tool or return.
        code_bytes: its longest text.
        state_bytes: the largest state that is kept while it waits for a call.
        depth: how deep its calls of functions may be nested.
    """

    cpu_s: float = 30.0
    wall_s: float = 900.0
    memory_mb: int = 128
    calls: int = 500
    printed_bytes: int = 16_000
    value_bytes: int = 8 * _MB
    code_bytes: int = 100_000
    state_bytes: int = 4 * _MB
    depth: int = 200

    @property
    def memory_bytes(self) -> int:
        """Memory of its values, in bytes."""
        return self.memory_mb * _MB
