"""apt: Debian and Ubuntu."""
