"""Everything an audit report shows, as plain data."""
