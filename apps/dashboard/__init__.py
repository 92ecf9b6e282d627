"""Home, search and the frame of every page: reads everyone, owned by no one."""
