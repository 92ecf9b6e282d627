"""The sandbox's own desk: what exists, which faults are in force, and the switches for them."""
