"""A run as one self-contained HTML page: inline SVG, no scripts, nothing fetched."""
