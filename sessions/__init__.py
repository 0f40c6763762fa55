"""Saved conversations: turns and their token ids, appended and synced as they end."""
