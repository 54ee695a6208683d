"""The worked program: two dense blocks, tensor 2, copies 2, on two devices; see docs/worked_program.md."""
