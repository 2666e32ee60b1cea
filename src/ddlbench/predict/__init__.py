"""What a step costs, told from files: links, profiles and plans in, seconds and bytes out.

Reading wing: no torch, no device, no network.
"""
