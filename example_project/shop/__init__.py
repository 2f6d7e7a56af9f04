"""The "Thirty Seconds" shop: an order that is not paid within its window closes by itself."""
