"""What each address shows or does."""
