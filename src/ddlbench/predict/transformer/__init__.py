"""The oracle for transformers: tensor x data x pipeline on up to thousands of devices."""
