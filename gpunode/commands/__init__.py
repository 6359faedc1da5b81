"""The commands, a module each; `cli` has their options."""
