"""Graph: a model's operators, placed on the ranks of a stage, become ops on a tape."""
