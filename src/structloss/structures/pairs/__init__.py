"""Two sequences aligned: who pairs with whom."""
