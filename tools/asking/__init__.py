"""Questions that calls put to people: the board they wait on, approval, and replies."""
