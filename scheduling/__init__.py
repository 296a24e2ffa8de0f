"""Pure policy over requests and blocks: no clock, no random source, no device.

Nothing is imported here: most processes want the limits or the statistics alone.
"""
