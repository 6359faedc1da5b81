"""The commands, a module each, `why` a folder; `cli` has their options."""
