"""What the commands do, a module each; `cli` has their options."""
