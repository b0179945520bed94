"""Letters to sounds."""
