"""Tests of one room each, with a database."""
