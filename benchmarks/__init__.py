"""How fast, beside named peers, in one run on one machine: ratios, never times."""
