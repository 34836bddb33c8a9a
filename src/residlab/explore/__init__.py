"""Explorables: one declaration, a live face (kernel) and a static face (page alone)."""
