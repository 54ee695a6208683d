"""Validate: predictions against published steps, a set at a time, beside a model that knows next to nothing."""
