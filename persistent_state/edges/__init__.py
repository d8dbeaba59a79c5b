"""Edges: each is a way in which one task feeds another, from one clock to the next."""
