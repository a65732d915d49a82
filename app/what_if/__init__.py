"""The panels of the What-if page: the answer's cards, members and their heads, pictures, pins, the proof."""
