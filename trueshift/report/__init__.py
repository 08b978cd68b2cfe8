"""Show what was measured: on the console, as figures, and as one page."""

from .output import write_audit
from .page import render_page

__all__ = ["render_page", "write_audit"]
