"""Closed forms: each formula of the book, written once, in numpy (scipy inside the functions that need it)."""
