"""Measurements that take their time: each is a module with ``main()`` and prints its own table."""
