"""Tests of the Lua function library, called directly, with no Python store between."""
