"""The book as a program: chapters executed once, rendered, and held to their numbers."""
