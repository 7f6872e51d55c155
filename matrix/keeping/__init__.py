"""Evidence: its form, where it is kept, and how it is brought together."""
