"""Explicit acyclic graphs: lattices, and their products with loss machines."""
