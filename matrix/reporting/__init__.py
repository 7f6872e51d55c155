"""What a campaign tells while it runs: to a person, to a program, to a CI service."""
