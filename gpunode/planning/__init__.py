"""What planners share: files, packages and units of a host, templates, edits that keep every other byte."""
