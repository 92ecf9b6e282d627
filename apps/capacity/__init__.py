"""Reserved capacity: reservations, Capacity Blocks, training plans, what may be bought and what was."""
