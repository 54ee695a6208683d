"""What tests and proofs need, and users do not."""
