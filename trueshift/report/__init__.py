"""Show what was measured: on the console, as figures, and as one page."""

from .page import render_page, write_audit

__all__ = ["render_page", "write_audit"]
