"""Show people what a store holds: as text, as HTML, as a picture and as a live view."""
