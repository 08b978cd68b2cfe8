"""What moves: shifts, distortions, and the named protocols made of them."""

from .registry import PROTOCOLS, SUITES, ShiftProtocol, find_protocols

__all__ = ["PROTOCOLS", "SUITES", "ShiftProtocol", "find_protocols"]
