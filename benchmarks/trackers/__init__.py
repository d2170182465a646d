"""Sends stored records to experiment trackers, from processes of their own."""
