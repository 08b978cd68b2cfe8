"""Everything an audit report shows, as plain data."""

from .run import run_audit

__all__ = ["run_audit"]
