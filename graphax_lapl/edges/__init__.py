"""The edge algebra: structured partial Jacobians and the operations on them."""
