"""Trees: packed forests of any kind, dependency trees, and trees of spans."""
