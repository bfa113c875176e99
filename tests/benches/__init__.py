"""The benches that are more than a measurement: what they compute, and that they run in their smallest form."""
