"""The frame of the pipeline and the parts that assemble it."""
